"use strict";
// What the pages do beyond links and forms: lists that follow their filters, live parts, copying. No library.

const find = (selector, within = document) => within.querySelector(selector);
// A browser reconnects a stream that breaks off, but gives up for good when it is once refused: then it is begun again.
const listen = (place, tell, fail = () => {}) => {
  let source;
  const begin = () => {
    source = new EventSource(place);
    source.onmessage = tell;
    source.onerror = () => {
      fail();
      if (source.readyState === EventSource.CLOSED) setTimeout(begin, 3000);
    };
  };
  begin();
  addEventListener("pagehide", () => source.close());
  return () => source.close();
};
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- copy the command --

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = find("pre", button.parentElement).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // a page that is not on this machine's own address may not write to the clipboard: mark the text instead
    getSelection().selectAllChildren(find("pre", button.parentElement));
    button.textContent = "Marked";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

// -- the list --

const rows = find("#rows");
if (rows) {
  const filters = find("#filters");
  const chosen = new Set(JSON.parse(sessionStorage.getItem("chosen") || "[]"));
  let most = new URLSearchParams(location.search).get("most") || "";
  let asked = 0;

  const wordsOf = () => {
    const words = new URLSearchParams();
    for (const [name, value] of new FormData(filters)) if (value) words.set(name, value);
    if (most) words.set("most", most);
    return words;
  };

  const showChosen = () => {
    for (const box of findAll("input[name=run]", rows)) box.checked = chosen.has(box.value);
    const count = chosen.size;
    find("#chosen").textContent = count ? `${count} selected` : "Mark finished runs to compare them.";
    find("#compare").disabled = count === 0;
    find("#beside").disabled = count === 0 || count > 2;
    find("#clear").hidden = count === 0;
    sessionStorage.setItem("chosen", JSON.stringify([...chosen]));
  };

  const load = async () => {
    const words = wordsOf();
    const number = ++asked;
    const answer = await fetch(`/rows?${words}`, { headers: { Accept: "text/html" } });
    if (number !== asked) return; // a later question has been asked meanwhile
    const focused = document.activeElement && document.activeElement.closest("#rows") ? document.activeElement : null;
    const place = focused ? findAll("a, input", rows).indexOf(focused) : -1;
    rows.innerHTML = await answer.text();
    if (place >= 0) { const again = findAll("a, input", rows)[place]; if (again) again.focus(); }
    history.replaceState(null, "", words.size ? `/?${words}` : "/");
    showChosen();
  };

  filters.addEventListener("submit", (event) => { event.preventDefault(); load(); });
  filters.addEventListener("change", () => { most = ""; load(); });
  let typing = 0;
  filters.addEventListener("input", (event) => {
    if (event.target.type !== "search") return;
    clearTimeout(typing);
    typing = setTimeout(() => { most = ""; load(); }, 150);
  });
  rows.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
    showChosen();
  });
  rows.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-sort], a[data-more]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const words = new URL(link.href).searchParams;
    filters.elements.sort.value = words.get("sort") || "";
    filters.elements.up.value = words.get("up") || "";
    most = words.get("most") || "";
    load();
  });
  find("#clear").addEventListener("click", () => { chosen.clear(); showChosen(); });
  find("#selection").addEventListener("submit", (event) => {
    // runs that are chosen but filtered out of sight are compared too
    event.preventDefault();
    const words = new URLSearchParams([...chosen].map((name) => ["run", name]));
    const place = event.submitter && event.submitter.getAttribute("formaction") || "/compare";
    location.href = `${place}?${words}`;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    find("input[type=search]").focus();
  });
  showChosen();

  listen("/events", (event) => {
    const version = String(JSON.parse(event.data).version);
    if (version === rows.dataset.version) return;
    rows.dataset.version = version;
    load();
  });
}

// -- a live run --

const live = find("#live[data-events]");
if (live) {
  const news = find("#news");
  let spoken = 0;
  const close = listen(live.dataset.events, (event) => {
    const told = JSON.parse(event.data);
    live.innerHTML = told.html;
    if (told.federation && find("#federation")) find("#federation").innerHTML = told.federation;
    if (told.state !== live.dataset.state) {
      if (told.state === "finished" || told.state === "fitted") { close(); location.reload(); return; }
      live.dataset.state = told.state;
      find("#state").innerHTML = `<span class="chip ${told.state}">${told.state}</span>`;
    }
    // a screen reader is told every ten seconds at most
    if (Date.now() - spoken > 10000 || told.state !== "running") {
      spoken = Date.now();
      news.textContent = told.state === "running" ? `Live: ${told.said}.` : `Nothing works in this folder now; ${told.said}.`;
    }
  }, () => { news.textContent = "The board does not answer; trying again."; });
}
