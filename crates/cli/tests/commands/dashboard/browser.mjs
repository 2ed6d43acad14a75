// The dashboard in a real browser. Given: where it is, the modules, the browser, the command that takes a lease, and,
// if its pictures are wanted, a directory for them.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const given = JSON.parse(process.argv[2]);
const { chromium } = createRequire(join(given.modules, 'x.js'))('playwright-core');
const axe = readFileSync(join(given.modules, 'axe-core', 'axe.min.js'), 'utf8');
const SCREENS = {
  now: ['/', ['Needs you', 'charges began and never reported', 'mac-mini/9034', 'Next slots']],
  timeline: ['/timeline', ['mac-mini', 'sandbox-7', 'What stands out']],
  job: ['/job/claudelab', ['Run times', 'TTL advice', '90s is short', 'Skip rate']],
  jobs: ['/jobs', ['every 45m', 'Last outcome', 'charges']],
  log: ['/log', ['Newest first', 'claudelab', 'Older records']],
};
const PHONE = { width: 360, height: 740 };
const DESK = { width: 1280, height: 800 };

const faults = [];
const told = [];
const check = (good, what) => { if (!good) faults.push(what); else told.push(what); };

const browser = await chromium.launch({
  executablePath: given.browser,
  headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync'],
});

// A page that keeps what goes wrong on it.
const open = async (options = {}) => {
  const context = await browser.newContext({ viewport: DESK, ...options });
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') faults.push(`console: ${message.text()} ${page.url()}`);
  });
  page.on('pageerror', (error) => faults.push(`script: ${error}`));
  page.on('request', (request) => {
    if (!request.url().startsWith(given.url)) faults.push(`a foreign request: ${request.url()}`);
  });
  return page;
};

const go = async (page, path) => {
  const response = await page.goto(given.url + path, { waitUntil: 'load' });
  check(response.status() === 200, `${path} answers`);
};

const accessible = async (page, name) => {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  for (const { id, nodes } of serious) faults.push(`${name}: ${id}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`);
  told.push(`${name}: axe, ${violations.length} remarks`);
};

const picture = async (page, name, options = {}) => {
  if (given.pictures) await page.screenshot({ path: join(given.pictures, `${name}.png`), ...options });
};

try {
  // Content, in light, dark and on a phone.
  for (const [kind, options] of [
    ['light', { colorScheme: 'light' }],
    ['dark', { colorScheme: 'dark' }],
    ['phone', { colorScheme: 'light', viewport: PHONE, hasTouch: true, reducedMotion: 'reduce' }],
  ]) {
    const page = await open(options);
    for (const [name, [path, facts]] of Object.entries(SCREENS)) {
      await go(page, path);
      const text = await page.innerText('body');
      for (const fact of facts) check(text.toLowerCase().includes(fact.toLowerCase()), `${name}, ${kind}: ${fact}`);
      const { wide, ground } = await page.evaluate(() => ({
        wide: document.scrollingElement.scrollWidth - innerWidth,
        ground: getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number),
      }));
      check(wide <= 0, `${name}, ${kind}: fits, ${wide} px over`);
      check((ground[0] < 64) === (kind === 'dark'), `${name}, ${kind}: ground ${ground}`);
      await accessible(page, `${name}, ${kind}`);
      await picture(page, `${name}-${kind}`, { fullPage: kind !== 'dark' });
    }
    await page.context().close();
  }

  // A change is seen within two seconds, and the focus stays.
  const page = await open();
  await go(page, '/');
  await page.waitForFunction(() => document.getElementById('live').innerText === 'live');
  await page.focus('th a[href="/job/gemilab"]');
  const summary = await page.innerText('#said');
  execFileSync(given.take[0], given.take.slice(1));
  const begun = Date.now();
  await page.waitForSelector('th a[href="/job/just-taken"]', { timeout: 2000 });
  check(Date.now() - begun < 2000, `a lease is seen after ${Date.now() - begun} ms`);
  check((await page.innerText('#said')) !== summary, 'the change is announced');
  const focused = await page.evaluate(() => document.activeElement.getAttribute('href'));
  check(focused && focused.startsWith('/job/'), `the focus stays: ${focused}`);
  const counts = () => page.locator('tr', { hasText: 'just-taken' }).locator('[data-label="Held for"]').innerText();
  const first = await counts();
  await page.waitForFunction((before) => {
    const row = [...document.querySelectorAll('tr')].find((row) => row.innerText.includes('just-taken'));
    return row.querySelector('[data-label="Held for"]').innerText !== before;
  }, first, { timeout: 4000 });
  told.push('times count on');

  // A page that nobody sees gives its connection back, and catches up when it is seen again.
  const seen = (hidden) => page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { value, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await seen(true);
  const late = given.take.map((word) => (word === 'just-taken' ? 'taken-unseen' : word));
  execFileSync(late[0], late.slice(1));
  await seen(false);
  await page.waitForSelector('th a[href="/job/taken-unseen"]', { timeout: 5000 });
  told.push('it catches up');

  // Filters.
  await go(page, '/log');
  await page.click('nav[aria-label=Outcome] a:has-text("failed")');
  await page.waitForURL(/only=failed/);
  const outcomes = await page.locator('td[data-label=Outcome]').allInnerTexts();
  check(outcomes.length > 0 && outcomes.every((word) => word.trim() === 'failed'), `only failed: ${outcomes}`);
  await go(page, '/log');
  await page.fill('input[name=name]', 'gemilab');
  await page.press('input[name=name]', 'Enter');
  await page.waitForURL(/name=gemilab/);
  const jobs = await page.locator('th.name').allInnerTexts();
  check(jobs.length > 0 && jobs.every((job) => job.trim() === 'gemilab'), `only gemilab: ${new Set(jobs)}`);
  await go(page, '/timeline');
  await page.click('nav[aria-label=Window] a:has-text("7d")');
  await page.waitForURL(/window=7d/);

  // By keyboard alone.
  await go(page, '/');
  const at = () => page.evaluate(() => {
    const { activeElement: element } = document;
    const style = getComputedStyle(element);
    return { text: element.innerText.trim(), seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 };
  });
  await page.keyboard.press('Tab');
  check((await at()).text === 'Skip to the content', 'the first stop skips the menu');
  const stops = [];
  for (let tabs = 0; tabs < 12; tabs += 1) { await page.keyboard.press('Tab'); stops.push(await at()); }
  check(stops.every(({ seen }) => seen), `every stop has a ring: ${JSON.stringify(stops.filter(({ seen }) => !seen))}`);
  check(['Timeline', 'Jobs', 'Log'].every((name) => stops.some(({ text }) => text === name)), 'the menu is reached');
  await go(page, '/');
  while ((await at()).text !== 'Log') await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForURL(/\/log$/);
  await page.focus('input[name=name]');
  await page.keyboard.type('rorklab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForURL(/name=rorklab/);
  told.push('filters by keyboard');
  await page.context().close();

  // Without a script.
  const plain = await open({ javaScriptEnabled: false });
  for (const [name, [path, facts]] of Object.entries(SCREENS)) {
    await go(plain, path);
    const text = await plain.innerText('body');
    for (const fact of facts) check(text.toLowerCase().includes(fact.toLowerCase()), `${name}, no script: ${fact}`);
  }
  await plain.context().close();

  // A server that goes away is said, and that it is back.
  if (given.end) {
    const left = await open();
    await go(left, '/');
    await left.waitForFunction(() => document.getElementById('live').innerText === 'live');
    left.removeAllListeners('console');
    process.kill(given.end, 'SIGTERM');
    await left.waitForFunction(() => document.getElementById('stale').innerText.includes('lost its connection'), null, { timeout: 15000 });
    check((await left.getAttribute('body', 'class')).includes('still'), 'times stop when the server is away');
  }
} catch (error) {
  faults.push(String(error.stack || error));
} finally {
  await browser.close();
}
console.log(JSON.stringify({ faults, told }, null, 1));
process.exitCode = faults.length ? 1 : 0;
