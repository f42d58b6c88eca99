"use strict";
// Keys, the window of the image, the slices beside it and outlines. Without this script every form still works.

const stack = document.getElementById("stack");
const picture = document.getElementById("picture");

function typing(target) {
  return target.matches("input:not([type=checkbox]), textarea, select");
}

// The letter of a key with Caps Lock, too; on a keyboard without Latin letters the one in its place.
function keyOf(event) {
  const place = event.key > "~" && /^Key([A-Z])$/.exec(event.code);
  return place ? place[1].toLowerCase() : event.key.length === 1 ? event.key.toLowerCase() : event.key;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.repeat && !event.key.startsWith("Arrow")) return; // a key that is held judges and leaves one label
  const key = keyOf(event);
  const button = document.querySelector(`button[data-key="${CSS.escape(key)}"]`);
  const links = { j: "skip", q: "queue" };
  if (button) button.click();
  else if (key in links) document.getElementById(links[key]).click();
  else if (key === "n") document.getElementById("note").focus();
  else if (key === "o") document.querySelectorAll(".switch").forEach((box) => box.click());
  else if (key === "h") showMap();
  else if (event.key === "ArrowUp") beside(-1);
  else if (event.key === "ArrowDown") beside(1);
  else return;
  event.preventDefault();
});

// Where the model looked: asked for at the first press; without a model the page says so.
function showMap() {
  const [map, words] = [document.getElementById("map"), document.getElementById("map-words")];
  if (!words) return;
  if (words.hidden) window.home(); // the map is of the label's own image
  words.hidden = !words.hidden;
  if (!map) return;
  if (!map.src) map.src = map.dataset.src;
  map.hidden = words.hidden;
}

// A verdict is sent once, however often a key is pressed; the second click of a double one is not for the next label.
document.getElementById("judge").addEventListener("click", (event) => {
  if (event.detail > 1) event.preventDefault();
});
document.getElementById("judge").addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});

// A note goes with a verdict; the browser asks before it leaves one that was not sent.
window.addEventListener("beforeunload", (event) => {
  if (document.getElementById("note").value.trim() && !document.getElementById("judge").dataset.sent) event.preventDefault();
});

if (stack) {
  const neighbours = JSON.parse(stack.dataset.neighbours);
  const windows = JSON.parse(stack.dataset.windows);
  let place = Number(stack.dataset.place);
  let level = null; // [centre, width]; null: the site's own
  let waiting = false;
  let again = false;

  function address() {
    const window = level ? `?centre=${level[0]}&width=${level[1]}` : "";
    return `/picture/${neighbours[place]}.png${window}`;
  }

  function draw() { // one request at a time; the last one counts
    if (waiting) { again = true; return; }
    waiting = true;
    picture.src = address();
  }

  function drawn(event) {
    waiting = false;
    picture.hidden = event.type === "error";
    document.getElementById("unread").hidden = !picture.hidden;
    if (again) { again = false; draw(); }
  }
  picture.addEventListener("load", drawn);
  picture.addEventListener("error", drawn);

  function say() {
    const shown = document.getElementById("levels");
    if (shown) shown.textContent = level ? `centre ${Math.round(level[0])}, width ${Math.round(level[1])}` : "";
  }

  const choice = document.getElementById("window");
  if (choice) choice.addEventListener("change", () => { level = [...windows[choice.value]]; say(); draw(); });

  let start = null;
  stack.addEventListener("pointerdown", (event) => {
    if (!choice) return;
    start = { x: event.clientX, y: event.clientY, level: level || [...windows[choice.value]] };
    stack.setPointerCapture(event.pointerId);
  });
  stack.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [centre, width] = start.level;
    const step = width / stack.clientWidth; // across the image: the width of the window once
    const narrowest = width / 100;
    level = [centre + (event.clientY - start.y) * step, Math.max(narrowest, width + (event.clientX - start.x) * 2 * step)];
    say();
    draw();
  });
  stack.addEventListener("pointerup", () => { start = null; });
  stack.addEventListener("pointercancel", () => { start = null; });

  window.home = () => window.beside(Number(stack.dataset.place) - place);
  window.beside = (step) => {
    const next = place + step;
    if (next < 0 || next >= neighbours.length) return;
    if (next === place) return;
    place = next;
    if (document.getElementById("map")) document.getElementById("map").hidden = document.getElementById("map-words").hidden = true;
    document.getElementById("place").textContent = `${place + 1} of ${neighbours.length}`;
    document.querySelectorAll(".outline").forEach((outline) => {
      outline.src = `/outline/${neighbours[place]}/${stack.dataset.class}/${outline.id}.png`;
    });
    draw();
  };
  for (const [id, step] of [["before", -1], ["after", 1]]) {
    const button = document.getElementById(id);
    if (button) button.addEventListener("click", () => window.beside(step));
  }
  document.querySelectorAll(".switch").forEach((box) => {
    box.addEventListener("change", () => { document.getElementById(box.dataset.of).hidden = !box.checked; });
  });
} else {
  window.beside = () => {};
}
