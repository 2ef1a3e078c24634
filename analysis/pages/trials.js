// A click on a heading of the map sorts it: the greatest first, or mechanisms by name.
const rows = document.querySelector("#map tbody");
document.querySelectorAll("#map thead button").forEach((button, column) => button.addEventListener("click", () => {
  const value = (row) => Number(row.children[column].dataset.value ?? -1);
  const name = (row) => row.children[0].textContent;
  const order = column ? (a, b) => value(b) - value(a) : (a, b) => name(a).localeCompare(name(b));
  rows.append(...[...rows.children].sort(order));
  document.querySelectorAll("#map th[aria-sort]").forEach((head) => head.removeAttribute("aria-sort"));
  button.parentElement.setAttribute("aria-sort", column ? "descending" : "ascending");
}));
