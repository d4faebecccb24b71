// Shows the frame of a slider that its position names. Every frame is in the page already.
"use strict";
for (const slider of document.querySelectorAll(".slider")) {
  const input = slider.querySelector("input[type=range]");
  const output = slider.querySelector("output");
  const frames = [...slider.querySelectorAll(".slider-frame")];
  const show = () => {
    const chosen = Number(input.value);
    frames.forEach((frame, index) => { frame.hidden = index !== chosen; });
    output.textContent = frames[chosen].dataset.value;
    input.setAttribute("aria-valuetext", frames[chosen].dataset.value);
  };
  input.addEventListener("input", show);
  // Without this script the control is hidden and the table of all values open.
  input.hidden = false;
  slider.querySelector(".slider-table").open = false;
  show();
}
