// Invisible characters (control codes, escapes, marks that reorder text) are shown as their code point.
// The same as `groupwise.base.harmless.visible`.
const UNSEEN = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e"
  + "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]"
  + "|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]", "g");

export const visible = (text) => String(text).replace(/\r\n/g, "\n").replace(UNSEEN,
  (mark) => "\u27e8U+" + mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");
