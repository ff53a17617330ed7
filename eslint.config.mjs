// Rules for the scripts of the pages (src/groupwise/web/assets) and their tests (tests/web).
import js from "@eslint/js";

const names = (words) => Object.fromEntries(words.trim().split(/\s+/).map((word) => [word, "readonly"]));
const BROWSER = names(`
  addEventListener Blob clearTimeout document fetch history innerHeight innerWidth IntersectionObserver localStorage
  location matchMedia navigator performance requestAnimationFrame setTimeout structuredClone URL URLSearchParams
`);

// Foreign text goes into a page through textContent alone: no way from text to markup or to code.
const MARKUP = ["innerHTML", "outerHTML", "insertAdjacentHTML", "srcdoc", "createContextualFragment", "setHTMLUnsafe",
  "parseHTMLUnsafe"];
const FROM_TEXT = [
  ...MARKUP.map((property) => ({ property, message: "Text goes in through textContent alone." })),
  { object: "document", property: "write", message: "Text goes in through textContent alone." },
  { object: "document", property: "writeln", message: "Text goes in through textContent alone." },
];

export default [
  js.configs.recommended,
  {
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-restricted-globals": ["error", "DOMParser", "Function", "Range", "event", "name"],
      "no-restricted-properties": ["error", ...FROM_TEXT],
      "no-script-url": "error",
      "no-undef": "error",
      "no-unused-vars": "error",
      "no-var": "error",
      "prefer-const": "error",
    },
  },
  { files: ["src/groupwise/web/assets/*.js"], languageOptions: { sourceType: "module", globals: BROWSER } },
];
