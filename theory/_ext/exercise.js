// Grades the number that a reader writes: a decimal, a fraction or per cent.
"use strict";
for (const form of document.querySelectorAll(".exercise")) {
  const said = form.querySelector(".exercise-said");
  const NUMBER = "[-+]?(?:\\d+\\.?\\d*|\\.\\d+)(?:e[-+]?\\d+)?";
  const read = (text) => {
    const found = text.trim().replace(",", ".").replace("−", "-")
      .match(new RegExp(`^(${NUMBER})(?:\\s*/\\s*(${NUMBER}))?\\s*(%?)$`, "i"));
    if (!found) return NaN;
    return Number(found[1]) / Number(found[2] ?? 1) / (found[3] ? 100 : 1);
  };
  form.querySelector(".exercise-field").hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const [value, right] = [read(form.querySelector("input").value), Number(form.dataset.answer)];
    const room = Number(form.dataset.tolerance) * (Math.abs(right) || 1);
    const good = Math.abs(value - right) <= room;
    form.dataset.result = Number.isFinite(value) ? (good ? "right" : "wrong") : "unread";
    said.textContent = {
      right: "Right.",
      wrong: `Not yet. Hint: ${form.dataset.hint}`,
      unread: "Write a number, such as 0.25, 1/4 or 25%.",
    }[form.dataset.result];
  });
}
