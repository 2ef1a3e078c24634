// Shows the equations, which stand in the pages as TeX; again after each instant navigation.
document$.subscribe(() => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    const displayMode = place.tagName === "DIV";
    const tex = place.textContent.trim().slice(2, -2); // between \[ and \], or \( and \)
    place.replaceChildren();
    for (const equation of displayMode ? tex.split("\\qquad") : [tex]) { // which wrap where there is no room for all
      katex.render(equation, place.appendChild(document.createElement("span")), {displayMode, throwOnError: false});
    }
  }
});
