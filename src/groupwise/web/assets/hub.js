// Events between parts of the dashboard that do not import each other.
const listeners = new Map();

export const listen = (name, act) => {
  listeners.set(name, [...(listeners.get(name) || []), act]);
};
export const tell = (name, ...details) => {
  for (const act of listeners.get(name) || []) act(...details);
};
