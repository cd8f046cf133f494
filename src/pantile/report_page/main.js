// Read the data, show the header and the view that the address names.
//
//   #overview  #tiles  #liveness  #ops  #ops/17  …        a view is made when it is first shown

const report = JSON.parse(document.getElementById("report").textContent);
const against = JSON.parse(document.getElementById("against").textContent);
const main = document.getElementById("main");
const made = new Map();

function header() {
  const when = new Date(report.created);
  const time = Number.isNaN(when.getTime()) ? report.created : when.toLocaleString();
  append(document.getElementById("header"), [
    h("h1", {}, `${report.name} (${report.kind})`),
    h(
      "p",
      { class: "quiet" },
      `On ${report.target.system}, ${time}. Every number is computed by a model of the machine, except those marked as measured.`,
    ),
  ]);
}

function sectionOf(view) {
  if (!made.has(view.id)) {
    const title = h("h2", { class: "paper" }, view.title); // on a screen the menu says it
    const section = h("section", { id: `view-${view.id}`, "aria-label": view.title }, title);
    // Where it belongs among those made already, so that a print has the order of the menu.
    const later = views.slice(views.indexOf(view) + 1).find((one) => made.has(one.id));
    main.insertBefore(section, later ? made.get(later.id).section : null);
    made.set(view.id, { section, handle: view.render(section, report, against) });
  }
  return made.get(view.id);
}

function showView() {
  const [id, argument] = location.hash.slice(1).split("/");
  if (id === "main" && made.size) return main.focus();
  const view = views.find((one) => one.id === id) || views[0];
  const { handle } = sectionOf(view);
  for (const [name, one] of made) one.section.hidden = name !== view.id;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#${view.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (argument !== undefined && handle && handle.open) handle.open(argument);
}

// All views, as wide as a sheet: a chart is as wide as it was drawn.
function printAll() {
  printing = true;
  document.documentElement.classList.add("printing");
  for (const view of views) sectionOf(view).section.hidden = view.id === "raw";
  for (const self of drawn) draw(self, true);
}

function printed() {
  printing = false;
  document.documentElement.classList.remove("printing");
  showView();
  for (const self of drawn) draw(self, true);
}

main.replaceChildren();
header();
append(
  document.getElementById("views"),
  views.map((view) => h("a", { href: `#${view.id}` }, view.title)),
);
window.addEventListener("hashchange", showView);
window.addEventListener("beforeprint", printAll);
window.addEventListener("afterprint", printed);
showView();
