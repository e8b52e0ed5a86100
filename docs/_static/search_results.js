// Results of the search: a page once, and without the buttons of the theme in its text.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const find = Search._performSearch;
  Search._performSearch = (...query) => {
    const pages = new Set();
    // The last result is shown first. Main index entries and titles find the same page.
    return find(...query).reverse().filter(([page, title, anchor]) => {
      const whole = !anchor || anchor.startsWith("#index-");
      const again = whole && pages.has(page);
      if (whole) pages.add(page);
      return !again;
    }).reverse();
  };
  const read = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const rest = ".bd-header-article, .bd-sidebar-secondary, #print-main-content, .prev-next-footer";
    page.querySelectorAll(rest).forEach((element) => element.remove());
    return read(page.documentElement.outerHTML, anchor);
  };
});
