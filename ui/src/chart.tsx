// Thirty days of node time as bars, in pixels: text in an SVG with a viewBox would grow with the window.

import { Box } from "@chakra-ui/react";
import { type RefObject, useEffect, useRef, useState } from "react";

import { count, duration, inUnitOf, money } from "./format.ts";
import { allSeconds, type Amounts, type Day, type Total } from "./nights.ts";
import { PHASES } from "./records.ts";
import { COLORS, Legend } from "./words.tsx";

const HEIGHT = 160;
const LEFT = 44;
const BOTTOM = 20;
const TEXT = { fill: "var(--chakra-colors-fg-muted)", style: { fontSize: 11 } };
const LINE = "var(--chakra-colors-border)";

export function useWidth(): [RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    if (!box.current) return undefined;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return [box, width];
}

/** Amounts of money as text. */
export const sum = (amounts: Amounts) =>
  Object.entries(amounts)
    .map(([currency, amount]) => money(amount, currency))
    .join(" + ");

/** A total's cost, as far as it is known. */
export function costOf(total: Total): string {
  const known = total.nights - total.withoutCost - total.withoutBill;
  if (!known) return total.nights ? "unknown" : money(0, "");
  const least = total.withoutCost || total.withoutBill || total.atLeast ? "at least " : "";
  return `${least}${sum(total.cost)}`;
}

/** The extra cost of an autoscaler with idle time. */
export function extraOf(total: Total): string {
  const known = total.nights - total.withoutAutoscaler - total.withoutBill;
  if (!known) return "unknown";
  return `${total.withoutAutoscaler || total.withoutBill ? "at least " : ""}+${sum(total.extra)}`;
}

function title({ day, total }: Day): string {
  if (!total.nights) return `${day}: no night`;
  const phases = PHASES.map((phase) => `${phase} ${duration(total.seconds[phase])}`).join(", ");
  const red = total.redRuns.size ? `, ${total.redRuns.size} red` : "";
  const cost = `cost ${costOf(total)}, an idle autoscaler ${extraOf(total)}`;
  return `${day}: ${count(total.runs.size, "night")}${red}, ${phases}; ${cost}`;
}

export const Bars = ({ days, onPick }: { days: readonly Day[]; onPick: (day: string) => void }) => {
  const [box, width] = useWidth();
  const top = Math.max(60, ...days.map(({ total }) => Math.max(allSeconds(total.seconds), total.autoscaler)));
  const step = (width - LEFT) / Math.max(1, days.length);
  const y = (seconds: number) => (HEIGHT * seconds) / top;
  return (
    <Box ref={box} w="100%">
      <svg width={width} height={HEIGHT + BOTTOM + 8} role="img" aria-label="Node time of the last 30 days">
        {[0, 0.5, 1].map((part) => (
          <g key={part} transform={`translate(0 ${8 + HEIGHT * (1 - part)})`}>
            <line x1={LEFT} x2={width} stroke={LINE} />
            <text x={LEFT - 6} y={4} textAnchor="end" {...TEXT}>
              {inUnitOf(top, top * part)}
            </text>
          </g>
        ))}
        {days.map((each, index) => (
          <g
            key={each.day}
            data-day={each.day}
            transform={`translate(${LEFT + index * step} 8)`}
            onClick={() => onPick(each.day)}
            style={{ cursor: each.total.nights ? "pointer" : "default" }}
          >
            <title>{title(each)}</title>
            <rect width={step} height={HEIGHT} fill="transparent" />
            <rect
              x={step * 0.68}
              width={step * 0.2}
              y={HEIGHT - y(each.total.autoscaler)}
              height={y(each.total.autoscaler)}
              fill={COLORS.other}
              data-phase="autoscaler"
            />
            <Stack total={each.total} width={step * 0.55} y={y} />
            {each.total.redRuns.size ? (
              <text x={step * 0.35} y={HEIGHT + BOTTOM - 6} textAnchor="middle" fill="var(--chakra-colors-fg)" style={{ fontSize: 12 }}>
                ✕
              </text>
            ) : null}
            {index % 7 === days.length % 7 ? (
              <text x={0} y={HEIGHT + BOTTOM - 4} {...TEXT}>
                {each.day.slice(5)}
              </text>
            ) : null}
          </g>
        ))}
      </svg>
      <Legend>
        <Box display="flex" alignItems="center" gap={1}>
          <Box as="span" w={3} h={3} style={{ background: COLORS.other }} />
          with an autoscaler that waits 10 idle minutes
        </Box>
        <Box>✕ red</Box>
      </Legend>
    </Box>
  );
};

const Stack = ({ total, width, y }: { total: Total; width: number; y: (seconds: number) => number }) => {
  let up = 0;
  return PHASES.map((phase) => {
    const height = y(total.seconds[phase]);
    up += height;
    return (
      <rect
        key={phase}
        x={width * 0.15}
        width={width}
        y={HEIGHT - up}
        height={height}
        fill={COLORS[phase]}
        data-phase={phase}
        data-seconds={total.seconds[phase]}
      />
    );
  });
};
