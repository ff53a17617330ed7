// Light or dark: as the system, until someone says otherwise. A browser may forbid that this is kept.
const system = matchMedia("(prefers-color-scheme: dark)");
const kept = {
  get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
  set: (name) => { try { localStorage.setItem("theme", name); } catch { /* then it lasts for this visit */ } },
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
