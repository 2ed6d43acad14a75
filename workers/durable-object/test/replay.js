// Core's table of cases against the worker's copy of the rule: gives the verdicts, in the table's order.

import { called, isName, listable, placed, removable, verdict } from "./legal.js";

const bytes = (text) => (text === null ? null : Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));

export default {
  async fetch(request) {
    const asked = await request.json();
    if (asked.rights) {
      return Response.json(
        asked.rights.map(([prefix, key]) => {
          const place = placed(prefix, key);
          return [place ?? null, listable(prefix, key) ?? null, place === undefined ? null : called(prefix, place)];
        }),
      );
    }
    if (asked.names) return Response.json(asked.names.map((name) => isName(name)));
    if (asked.keys) return Response.json(asked.keys.map((key) => removable(key)));
    const { key, instance, write, stored, ages, offered } = asked;
    const bodies = offered.map(bytes);
    const verdicts = [];
    for (const old of stored.map(bytes)) {
      for (const age of ages) {
        for (const admin of [false, true]) {
          for (const body of bodies) {
            const { legal, illegal } = verdict({ key, old, age, instance, admin, write, body });
            verdicts.push(legal ?? `-${illegal}`);
          }
        }
      }
    }
    return Response.json(verdicts);
  },
};
