// What every page uses to find and to make its elements.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const make = (tag, text, attributes = {}) => {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};
const badge = (words, stale) => { $("live").textContent = words; $("live").classList.toggle("stale", stale); };
