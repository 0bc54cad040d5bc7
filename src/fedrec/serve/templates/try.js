"use strict";

const split = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
const field = (name) => document.getElementById(name).value;

function request(path, id) {
  const k = Number(field("k")) || 10;
  const category = split(field("category")), deny = split(field("deny"));
  if (path === "fold-in") {
    const body = JSON.stringify({ items: split(id), k, category, deny });
    return fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  }
  const query = new URLSearchParams({ k });
  if (path === "recommendations") {
    category.forEach((name) => query.append("category", name));
    deny.forEach((item) => query.append("deny", item));
  }
  return fetch(`${path}/${encodeURIComponent(id)}?${query}`);
}

function add(parent, kind, text, style) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  parent.append(made);
  return made;
}

function show(output, answer) {
  output.replaceChildren();
  if (answer.error) {
    add(output, "p", answer.error, "soft");
    return;
  }
  if (answer.served) add(output, "p", `How it was made: ${answer.served}`, "soft");
  if (answer.unknown && answer.unknown.length) add(output, "p", `Not known: ${answer.unknown.join(", ")}`, "soft");
  if (!answer.items.length) add(output, "p", "No item is left.", "soft");
  const list = add(output, "ol");
  for (const line of answer.items) {
    const row = add(list, "li");
    add(row, "span", line.rank, "n");
    add(row, "span", line.title ? `${line.title} (${line.item})` : line.item);
  }
}

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = form.parentElement.querySelector("output");
    try {
      const answer = await request(form.dataset.path, new FormData(form).get("id").trim());
      show(output, await answer.json());
    } catch (error) {
      show(output, { error: "The service did not answer." });
    }
  });
}
