"use strict";
// Follows what happens: the part of the page that changes is fetched again as this service renders it, on each event of
// its job and every so many seconds. Without scripts the page reloads itself.
const live = () => document.querySelector("#live[data-every]");
let isWaiting = false;

async function renew() {
  if (isWaiting || !live() || document.hidden) return;
  isWaiting = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.redirected) return location.assign(answer.url);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("#live");
    const old = live(), focused = old.contains(document.activeElement) ? document.activeElement : null;
    const label = focused && focused.getAttribute("aria-label");
    old.replaceWith(document.importNode(fresh, true));
    document.title = page.title;
    if (label) [...document.querySelectorAll("button")].find((b) => b.getAttribute("aria-label") === label)?.focus();
  } catch {
    // The service is away; the next try may find it.
  } finally {
    isWaiting = false;
  }
}

function follow() {
  const part = live();
  if (!part) return;
  setInterval(renew, 1000 * part.dataset.every);
  document.addEventListener("visibilitychange", renew);
  if (!part.dataset.events) return;
  let soon = 0;
  const source = new EventSource(part.dataset.events);
  const changed = () => {
    clearTimeout(soon);
    soon = setTimeout(renew, 200);
  };
  source.addEventListener("state", changed);
  source.addEventListener("progress", changed);
}

async function send(form, file, status) {
  status.textContent = "sending the file…";
  const headers = { "Content-Type": "application/octet-stream" };
  const answer = await fetch("/v1/uploads", { method: "POST", body: file, headers });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  form.elements.upload.value = told.upload;
  form.submit();
}

function takeFiles(form) {
  form.querySelector(".needs-script").hidden = false;
  const status = form.querySelector("[role=status]"), files = form.querySelector("[type=file]");
  form.addEventListener("submit", (event) => {
    if (!files.files.length) return;
    event.preventDefault();
    send(form, files.files[0], status).catch((error) => { status.textContent = error.message; });
  });
}

follow();
for (const form of document.querySelectorAll("[data-upload]")) takeFiles(form);
