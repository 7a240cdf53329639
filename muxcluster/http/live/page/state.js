// What the page knows and what is chosen in it.

export const page = {
  key: "",
  snapshot: null,
  answeredAt: 0,
  problem: "",
  turns: 0,
  sort: { column: "name", descending: false },
  filter: "",
  model: null, // the model that is shown by unit
  colours: new Map(),
  buttons: new Map(), // of the table of models, by key
  plan: null, // the plan in force
  whatIf: null, // the one that would be made after changes
  isPressed: false, // the mouse, or a finger
};
