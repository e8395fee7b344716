// Follows the changes of a page by server-sent events. Only text nodes and elements are created, never markup.

const ENTRIES = 500; // as many as the server shows
const TEXT = 64 * 1024; // characters of one entry
const FRAME = 8; // milliseconds of work between two frames

const status = document.getElementById("status");
let said = 0;
let pending = null;

// Announces a text, at most once a second; of several, the last.
function say(text) {
  pending = text;
  const wait = Math.max(0, said + 1000 - Date.now());
  setTimeout(() => {
    if (pending === null) return;
    if (status) status.textContent = pending;
    pending = null;
    said = Date.now();
  }, wait);
}

const list = document.getElementById("changes");
if (list) {
  const source = new EventSource(list.dataset.changes);
  source.onmessage = (message) => {
    const { counts, list: now } = JSON.parse(message.data);
    for (const [name, count] of Object.entries(counts)) {
      for (const element of document.querySelectorAll("[data-count]")) {
        if (element.dataset.count === name) element.textContent = count;
      }
    }
    const isChanged = now !== list.dataset.list;
    document.getElementById("changed").hidden = !isChanged;
    say(`${counts.live} live, ${counts.waiting} waiting, ${counts.ended} ended`);
  };
}

const stream = document.getElementById("stream");
if (stream) follow(stream.dataset.events);

function follow(url) {
  const entries = document.getElementById("entries");
  const byKey = new Map();
  for (const element of entries.children) {
    const key = element.dataset.key;
    const text = element.querySelector("pre");
    if (key && text) byKey.set(decodeURIComponent(key), { element, text, length: text.textContent.length, more: null, extra: 0 });
  }
  let queue = [];
  let at = 0;
  let count = 0;
  let isScheduled = false;

  const source = new EventSource(url);
  let isLost = false;
  source.onopen = () => {
    if (isLost) say("The connection is restored.");
    isLost = false;
  };
  source.onmessage = (message) => {
    for (const op of JSON.parse(message.data)) queue.push(op);
    schedule();
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) say("The connection has ended. Load the page again.");
    else {
      isLost = true;
      say("The connection is lost. It is being restored.");
    }
  };

  function schedule() {
    if (isScheduled) return;
    isScheduled = true;
    // A hidden page has no frames.
    if (document.hidden) setTimeout(work, 100);
    else requestAnimationFrame(work);
  }

  function work() {
    isScheduled = false;
    const until = performance.now() + FRAME;
    while (at < queue.length && performance.now() < until) apply(queue[at++]);
    if (at < queue.length) return schedule();
    queue = [];
    at = 0;
  }

  function apply([kind, ...rest]) {
    if (kind === "move") return move(...rest);
    count += 1;
    if (kind === "add") add(...rest);
    else if (kind === "append") append(...rest);
    else if (kind === "reset") {
      entries.replaceChildren();
      byKey.clear();
    } else if (kind === "end") end(...rest);
    if (kind !== "end") say(`${count} changes since the page was opened`);
  }

  function add(key, kind, title, text) {
    const element = document.createElement("li");
    element.className = kind;
    const head = document.createElement("h3");
    head.textContent = title;
    element.append(head);
    if (key !== null || text !== "") {
      const body = document.createElement("pre");
      body.tabIndex = 0;
      element.append(body);
      const entry = { element, text: body, length: 0, more: null, extra: 0 };
      if (key !== null) {
        byKey.set(key, entry);
        element.dataset.key = encodeURIComponent(key);
      }
      write(entry, text);
    }
    entries.append(element);
    while (entries.childElementCount > ENTRIES) {
      const first = entries.firstElementChild;
      if (first.dataset.key) byKey.delete(decodeURIComponent(first.dataset.key));
      first.remove();
    }
  }

  // Marks the layers that the run is in.
  function move(to, words) {
    document.getElementById("at").textContent = words;
    for (const ring of document.querySelectorAll("[data-at]")) ring.classList.toggle("now", ring.dataset.at === to);
  }

  function append(key, text) {
    const entry = byKey.get(key);
    if (entry) write(entry, text);
  }

  function write(entry, text) {
    const shown = text.slice(0, Math.max(0, TEXT - entry.length));
    if (shown !== "") {
      const last = entry.text.lastChild;
      if (last) last.appendData(shown);
      else entry.text.append(shown);
      entry.length += shown.length;
    }
    if (shown.length < text.length) {
      entry.extra += text.length - shown.length;
      if (!entry.more) {
        entry.more = document.createElement("p");
        entry.more.className = "note";
        entry.element.append(entry.more);
      }
      entry.more.textContent = `${Math.ceil(entry.extra / 1024)} Ki characters more. Load the page again to read them.`;
    }
  }

  function end(state, words) {
    source.close();
    move("none", "–");
    const badge = document.createElement("span");
    badge.className = `badge ${state}`;
    badge.textContent = state;
    document.getElementById("state").replaceChildren(badge);
    const again = document.createElement("a");
    again.href = location.href;
    again.textContent = state === "waiting" ? "The run waits for a reply. Show its question." : "Load the whole run.";
    const note = document.createElement("p");
    note.append(again);
    entries.after(note);
    say(`Run ${words}`);
  }
}
