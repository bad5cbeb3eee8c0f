"use strict";
// Browsers of cases and answers, and the refreshing of a live page. Texts of
// models reach the page as text, or as fragments that the server has escaped.
(() => {
  const PAGE = 40;
  const root = document.documentElement;
  const live = "live" in root.dataset;
  root.classList.add("js");

  const make = (tag, attributes = {}, text = "") => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      element.setAttribute(name, value);
    }
    element.textContent = text;
    return element;
  };

  const base = new URL(".", location.href);

  async function ask(path) {
    const reply = await fetch(new URL(path, base), {
      cache: "no-store",
      credentials: "same-origin",
    });
    if (!reply.ok) throw new Error(`The server said ${reply.status}.`);
    return reply;
  }

  async function inflated(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes])
      .stream()
      .pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  }

  class Browser {
    constructor(element) {
      this.element = element;
      this.kind = element.dataset.kind;
      this.noun = element.dataset.noun;
      this.list = element.querySelector(".list");
      this.detail = element.querySelector(".detail");
      this.count = element.querySelector(".count");
      this.pager = element.querySelector(".pager");
      this.blocks = [
        ...document.querySelectorAll(`.block[data-kind="${this.kind}"]`),
      ];
      this.unpacked = new Map();
      this.page = 0;
      this.chosen = null;
      const index = document.querySelector(`.index[data-kind="${this.kind}"]`);
      this.take(JSON.parse(index.textContent));
      this.controls();
      this.show();
    }

    take(index) {
      this.facets = index.facets;
      this.orders = index.orders;
      this.rows = index.rows.map(([key, title, facts, facets, order], i) => ({
        key,
        title,
        facts,
        facets,
        order,
        place: i,
        search: `${key} ${title} ${facts}`.toLowerCase(),
      }));
      this.places = new Map(this.rows.map((row) => [row.key, row]));
    }

    controls() {
      const form = this.element.querySelector(".filters");
      const before = new Map(
        [...form.querySelectorAll("select, input")].map((e) => [e.name, e.value]),
      );
      form.replaceChildren();
      const labelled = (name, text, control) => {
        const label = make("label", {}, `${text} `);
        control.name = name;
        if (before.has(name)) control.value = before.get(name);
        control.addEventListener("input", () => {
          this.page = 0;
          this.show();
        });
        label.append(control);
        form.append(label);
        return control;
      };
      const select = (options) => {
        const control = make("select");
        for (const [value, text] of options) {
          control.append(make("option", { value }, text));
        }
        return control;
      };
      this.words = labelled("words", "search", make("input", { type: "search" }));
      this.choices = this.facets.map((name, place) => {
        const values = [...new Set(this.rows.map((r) => r.facets[place]))].sort();
        if (values.length < 2) return null;
        const options = [["", "all"], ...values.map((v) => [`=${v}`, v])];
        return labelled(`f${place}`, name, select(options));
      });
      const orders = this.orders.map((name, place) => [String(place), name]);
      this.order = labelled("order", "order", select(orders));
    }

    found() {
      const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = this.choices.map((c) => (c && c.value ? c.value.slice(1) : null));
      const rows = this.rows.filter(
        (row) =>
          wanted.every((value, i) => value === null || row.facets[i] === value) &&
          words.every((word) => row.search.includes(word)),
      );
      const by = Number(this.order.value);
      return rows.sort(
        (a, b) => b.order[by] - a.order[by] || a.place - b.place,
      );
    }

    // Something to read beside the list, without taking the focus.
    first() {
      const row = this.chosen === null ? this.current[0] : null;
      if (row) this.open(row.key, { focus: false });
    }

    show() {
      const rows = this.found();
      const pages = Math.max(1, Math.ceil(rows.length / PAGE));
      this.page = Math.min(this.page, pages - 1);
      const shown = rows.slice(this.page * PAGE, (this.page + 1) * PAGE);
      const all = this.rows.length.toLocaleString("en");
      this.count.textContent = this.rows.length
        ? `${rows.length.toLocaleString("en")} of ${all} ${this.noun}s`
        : `No ${this.noun} yet.`;
      this.current = rows;
      this.list.replaceChildren(
        ...shown.map((row) => {
          const item = make("li");
          const button = make("button", { type: "button" });
          button.append(
            make("span", { class: "row-title" }, row.title || row.key),
            make("span", { class: "row-facts" }, row.facts),
          );
          if (row.key === this.chosen) button.setAttribute("aria-current", "true");
          button.dataset.key = row.key;
          button.addEventListener("click", () => go(this.kind, row.key));
          item.append(button);
          return item;
        }),
      );
      this.pager.replaceChildren();
      if (pages > 1) {
        const turn = (by, text) => {
          const button = make("button", { type: "button" }, text);
          button.disabled = this.page + by < 0 || this.page + by >= pages;
          button.addEventListener("click", () => {
            this.page += by;
            this.show();
            this.list.querySelector("button")?.focus();
          });
          return button;
        };
        this.pager.append(
          turn(-1, "Previous"),
          make("span", {}, `${this.page + 1} of ${pages}`),
          turn(1, "Next"),
        );
      }
    }

    async fragment(row) {
      if (live) {
        return (await ask(`${this.kind}/${encodeURIComponent(row.key)}`)).text();
      }
      const size = Number(this.element.dataset.block);
      const number = Math.floor(row.place / size);
      if (!this.unpacked.has(number)) {
        this.unpacked.set(number, inflated(this.blocks[number].textContent));
      }
      return (await this.unpacked.get(number))[row.place % size];
    }

    async open(key, { focus = true } = {}) {
      const row = this.places.get(key);
      this.chosen = key;
      if (!row) {
        this.detail.replaceChildren(
          make("p", { class: "empty" }, `There is no ${this.noun} of that name.`),
        );
        return;
      }
      const place = this.current.indexOf(row);
      if (place >= 0) this.page = Math.floor(place / PAGE);
      this.show();
      try {
        const text = await this.fragment(row);
        if (this.chosen !== key) return;
        // Escaped by the template that made it; the policy runs no script of it.
        const parsed = new DOMParser().parseFromString(text, "text/html");
        this.detail.replaceChildren(...parsed.body.childNodes);
      } catch (error) {
        this.detail.replaceChildren(
          make("p", { class: "empty" }, `It cannot be shown: ${error.message}`),
        );
      }
      if (focus) {
        this.detail.focus({ preventScroll: true });
        this.detail.scrollIntoView({ block: "nearest" });
      }
    }

    move(event) {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const button = event.target.closest(".list button");
      if (!by || !button) return;
      const buttons = [...this.list.querySelectorAll("button")];
      const next = buttons[buttons.indexOf(button) + by];
      if (next) {
        event.preventDefault();
        next.focus();
      }
    }
  }

  const browsers = new Map();
  for (const element of document.querySelectorAll(".browser")) {
    const browser = new Browser(element);
    browsers.set(browser.kind, browser);
    browser.list.addEventListener("keydown", (event) => browser.move(event));
  }

  function go(kind, key) {
    const wanted = `#${kind}/${encodeURIComponent(key)}`;
    if (location.hash === wanted) route();
    else location.hash = wanted;
  }

  function route() {
    const [kind, ...rest] = location.hash.slice(1).split("/");
    const browser = browsers.get(kind);
    if (!browser || !rest.length) return;
    browser.open(decodeURIComponent(rest.join("/")));
  }
  addEventListener("hashchange", route);
  route();
  for (const browser of browsers.values()) browser.first();

  if (!live) return;
  const pulse = document.querySelector(".pulse");
  const opened = (part) =>
    [...part.querySelectorAll("details")].map((one) => one.open);
  let version = root.dataset.live;

  async function refresh() {
    const said = (await (await ask("version")).json()).version;
    if (said === version) return;
    version = said;
    const text = await (await ask(".")).text();
    const parsed = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const name = part.dataset.part;
      const fresh = parsed.querySelector(`[data-part="${name}"]`);
      if (!fresh || fresh.innerHTML === part.dataset.shown) continue;
      const states = opened(part);
      const key = fresh.innerHTML;
      part.replaceChildren(...fresh.childNodes);
      part.dataset.shown = key;
      if (states.length === part.querySelectorAll("details").length) {
        part.querySelectorAll("details").forEach((one, i) => {
          one.open = states[i];
        });
      }
    }
    for (const browser of browsers.values()) {
      const index = parsed.querySelector(`.index[data-kind="${browser.kind}"]`);
      browser.take(JSON.parse(index.textContent));
      if (!browser.element.contains(document.activeElement)) browser.controls();
      browser.show();
      browser.first();
    }
  }

  async function follow() {
    let wait = 2000;
    try {
      if (!document.hidden) await refresh();
      pulse.textContent = "following";
      pulse.classList.remove("lost");
    } catch (error) {
      pulse.textContent = `not reached: ${error.message}`;
      pulse.classList.add("lost");
      wait = 5000;
    }
    setTimeout(follow, wait);
  }
  follow();
})();
