// The dark or light theme, set before the first paint. A choice other than the system's is stored in this browser.
// Not a module, because modules run after the first paint.
(() => {
  const NAME = "isotrope-theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  function kept() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is blocked
    }
  }

  function keep(theme) {
    try {
      if (theme === (system.matches ? "dark" : "light")) localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, theme);
    } catch {
      // the choice lasts until the page is left
    }
  }

  function show(theme) {
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  show(kept());
  addEventListener("storage", (event) => event.key === NAME && show(event.newValue));
  addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const now = root.dataset.theme ?? (system.matches ? "dark" : "light");
      const next = now === "dark" ? "light" : "dark";
      show(next);
      keep(next);
    });
  });
})();
