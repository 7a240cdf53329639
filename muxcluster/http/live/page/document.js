// Elements. Whatever the server says is put into the document as text, never as HTML.

export function at(id) {
  return document.getElementById(id);
}

export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    element.setAttribute(name, value);
  }
  element.append(...nodes(children));
  return element;
}

export function text(value) {
  return document.createTextNode(String(value));
}

// Elements as they are, all other values as text.
function nodes(children) {
  return children.map((child) => (typeof child === "object" ? child : text(child)));
}

export function fill(id, ...children) {
  at(id).replaceChildren(...nodes(children));
}
