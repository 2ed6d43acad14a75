// Keeps a page up to date. Without it every page works; it only has to be loaded again.
(() => {
  'use strict';
  const by = (id) => document.getElementById(id);
  const body = document.body;
  const isNow = body.dataset.page === 'now';
  // What the server's clock shows when this one shows 0.
  let ahead = Number(body.dataset.now) * 1000 - Date.now();
  let heard = Date.now();
  let still = false;

  const human = (s) => {
    s = Math.max(0, Math.floor(s));
    if (s < 120) return s + 's';
    let text = '';
    for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']]) {
      if (s >= size) { text += Math.floor(s / size) + unit; s %= size; }
    }
    return text;
  };

  const show = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  // Everything that counts up or down. It stops while the page or the store is away.
  const tick = () => {
    if (still || by('state').firstElementChild) return;
    const now = (Date.now() + ahead) / 1000;
    for (const element of document.querySelectorAll('[data-since],[data-until]')) {
      const { since, until, ttl, after } = element.dataset;
      if (ttl) {
        const left = Math.max(0, Math.min(1, (until - now) / ttl));
        element.setAttribute('width', (left * 64).toFixed(1));
      } else {
        show(element, human(since ? now - since : until - now) + (after || ''));
      }
    }
  };

  const live = (on, text) => {
    by('live').classList.toggle('on', on);
    show(by('live').lastElementChild, text);
  };

  const answers = () => {
    const silent = Boolean(by('state').firstElementChild);
    body.classList.toggle('still', silent || still);
    live(!silent && !still, still ? 'not connected' : silent ? 'the store is silent' : 'live');
  };

  const hear = () => {
    heard = Date.now();
    if (still) { still = false; by('stale').textContent = ''; }
    answers();
  };

  // Replaces the content, and leaves the focus where it was.
  const swap = (place, html) => {
    const focused = document.activeElement;
    const inside = focused && focused !== place && place.contains(focused);
    const all = () => [...place.querySelectorAll('a,button,input,summary,[tabindex]')];
    const at = inside ? all().indexOf(focused) : -1;
    place.innerHTML = html;
    if (at >= 0) { const same = all()[at]; if (same) same.focus({ preventScroll: true }); }
  };

  const mark = body.dataset.mark ? '&mark=' + body.dataset.mark : '';
  let events;
  let tried;
  const connect = () => {
    tried = Date.now();
    events = new EventSource('/events?page=' + body.dataset.page + mark);
    for (const [name, act] of Object.entries(acts)) events.addEventListener(name, act);
  };

  const acts = {
    open: hear,
    beat: hear,
    state: (event) => { by('state').innerHTML = event.data; hear(); },
    now: (event) => {
      hear();
      if (!isNow) return;
      swap(by('content'), event.data);
      const told = by('content').firstElementChild.dataset;
      ahead = Number(told.now) * 1000 - Date.now();
      show(by('said'), told.said);
      by('needs').innerHTML = '';
      if (told.needs > 0) {
        const badge = document.createElement('span');
        badge.className = 'n';
        badge.textContent = told.needs;
        const more = document.createElement('span');
        more.className = 'sr';
        more.textContent = told.needs === '1' ? ' thing needs you' : ' things need you';
        badge.append(more);
        by('needs').append(badge);
      }
      tick();
    },
    newer: () => {
      hear();
      if (by('newer')) return;
      const line = document.createElement('p');
      line.id = 'newer';
      line.className = 'newer';
      line.setAttribute('role', 'status');
      const link = document.createElement('a');
      link.href = location.pathname + location.search;
      link.textContent = 'There is something newer: show it';
      line.append(link);
      by('content').before(line);
    },
  };

  // A browser opens few connections to one server: a page that nobody sees gives its own back.
  document.addEventListener('visibilitychange', () => {
    events.close();
    if (document.hidden) return;
    heard = Date.now();
    connect();
  });
  connect();

  setInterval(() => {
    if (document.hidden) return;
    const quiet = (Date.now() - heard) / 1000;
    // A browser does not try again by itself after a refusal.
    if (events.readyState === EventSource.CLOSED && Date.now() - tried > 5000) connect();
    if (events.readyState === EventSource.CLOSED || quiet > 12 || (events.readyState !== EventSource.OPEN && quiet > 3)) {
      still = true;
      show(by('stale'), 'This page lost its connection ' + human(quiet) + ' ago and tries again. What it shows may be old.');
      answers();
    }
    tick();
  }, 1000);
})();
