// Requests to the interface of `groupwise watch`; see `groupwise.web.dashboard.routes`.

// The server refused the request.
export class Refused extends Error {}
// The server did not answer.
export class Gone extends Error {}

export const get = async (path, parameters) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== "" && one !== null && one !== undefined) query.append(name, one);
    }
  }
  const text = query.toString();
  let answer;
  let table;
  try {
    answer = await fetch("/api/" + path + (text ? "?" + text : ""), { cache: "no-store" });
    table = await answer.json();
  } catch (failure) { throw new Gone(failure.message, { cause: failure }); }
  if (!answer.ok) throw new Refused(table.error || "the server answered " + answer.status);
  return table;
};

// For requests after a click: the polling loop reports that the server is gone.
export const unlessGone = (failure) => { if (!(failure instanceof Gone)) throw failure; };
export const runPath = (id, what) => "runs/" + encodeURIComponent(id) + "/" + what;
