// The texts of the page whose contrast with what is behind them is below `least`, by WCAG's formula.
(least) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 250) return color;
    }
    return [255, 255, 255, 255];
  };
  const own = [...document.querySelectorAll("section *")].filter((each) =>
    [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim()),
  );
  return own.flatMap((element) => {
    if (["title", "style"].includes(element.tagName.toLowerCase())) return [];
    const style = getComputedStyle(element);
    const [one, other] = [light(rgba(element instanceof SVGElement ? style.fill : style.color)), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return contrast < least ? [`${element.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`] : [];
  });
};
