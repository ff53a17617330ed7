// Light or dark: that of the system until the user chooses. A browser may refuse to store the choice.
const system = matchMedia("(prefers-color-scheme: dark)");
const kept = {
  get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
  set: (name) => { try { localStorage.setItem("theme", name); } catch { /* not stored: it lasts for this visit */ } },
};

export const followTheme = (switcher) => {
  let chosen = kept.get();
  const isDark = () => (chosen ? chosen === "dark" : system.matches);
  const show = () => {
    document.documentElement.style.colorScheme = chosen || "";
    switcher.textContent = isDark() ? "Light" : "Dark";
  };
  switcher.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    kept.set(chosen);
    show();
  });
  system.addEventListener("change", show);
  switcher.hidden = false;
  show();
};
