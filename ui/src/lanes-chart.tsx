// The lanes, drawn in pixels.

import { Box } from "@chakra-ui/react";

import { useWidth } from "./chart.tsx";
import { clock } from "./format.ts";
import type { Lane } from "./lanes.ts";
import { COLORS } from "./words.tsx";

const ROW = 26;
const TEXT = { fill: "var(--chakra-colors-fg)", style: { fontSize: 12 } };
const MUTED = { fill: "var(--chakra-colors-fg-muted)", style: { fontSize: 11 } };
const LINE = "var(--chakra-colors-border)";

export const Chart = ({ lanes }: { lanes: Lane[] }) => {
  const [box, width] = useWidth();
  const left = Math.min(240, width * 0.3);
  const times = lanes.flatMap((lane) => lane.pieces.flatMap((piece) => [piece.from, piece.to]));
  const from = Math.min(...times);
  const to = Math.max(from + 1000, ...times);
  const x = (at: number) => left + ((width - left - 12) * (at - from)) / (to - from);
  const height = lanes.length * ROW;
  return (
    <Box ref={box} w="100%">
      <svg width={width} height={height + 24} role="img" aria-label="The run's tasks and machines on one clock">
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <g key={part}>
            <line x1={x(from + (to - from) * part)} x2={x(from + (to - from) * part)} y1={0} y2={height} stroke={LINE} />
            <text
              x={x(from + (to - from) * part)}
              y={height + 16}
              textAnchor={part === 0 ? "start" : part === 1 ? "end" : "middle"}
              {...MUTED}
            >
              {clock(from + (to - from) * part)}
            </text>
          </g>
        ))}
        {lanes.map((lane, row) => (
          <g key={`${row} ${lane.name}`} transform={`translate(0 ${row * ROW})`} data-lane={lane.name}>
            <text x={0} y={ROW / 2 + 4} {...TEXT}>
              <title>{lane.name}</title>
              {short(lane.name, left)}
            </text>
            {lane.pieces.map((piece, index) => (
              <rect
                key={index}
                x={x(piece.from)}
                width={Math.max(2, x(piece.to) - x(piece.from))}
                y={5}
                height={ROW - 10}
                rx={2}
                fill={COLORS[piece.kind]}
                data-kind={piece.kind}
              >
                <title>
                  {piece.said}, {clock(piece.from)} to {lane.open ? "now" : clock(piece.to)}
                </title>
              </rect>
            ))}
            {lane.marks
              .filter((mark) => mark.at >= from && mark.at <= to)
              .map((mark, index) => (
                <line
                  key={index}
                  x1={x(mark.at)}
                  x2={x(mark.at)}
                  y1={3}
                  y2={ROW - 3}
                  stroke="var(--chakra-colors-fg)"
                  strokeWidth={2}
                >
                  <title>
                    {mark.said}, {clock(mark.at)}
                  </title>
                </line>
              ))}
          </g>
        ))}
      </svg>
    </Box>
  );
};

/** A long name keeps its end, which distinguishes tasks; a node's host name loses its domain first. */
const short = (whole: string, pixels: number) => {
  const most = Math.floor(pixels / 7);
  const name = whole.length > most && /^ip-|\.internal$/.test(whole) ? whole.split(".")[0]! : whole;
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
};
