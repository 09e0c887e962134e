// A run's nodes as lanes on one clock: one per task that requests, uses or releases them, and one per machine.

import { type Failure, type GpuUse, type Machine, type Phase, type Refusal, type TimedPhase, type Usage } from "./records.ts";
import type { PoolId } from "./pools.ts";
import { hasRole, type Task } from "./tasks.ts";

export type RunRecords = {
  tasks: Task[];
  phases: (task: Task) => TimedPhase[];
  computed: (task: Task) => number | null;
  gpus: { task: Task; gpus: GpuUse[] }[];
  failures: Failure[];
  refusals: { task: Task; refusals: Refusal[] }[];
  bills: { task: Task; pool: PoolId | null; usage: Usage | null; why: string }[];
};

export type Piece = { from: number; to: number; kind: Phase | "other"; said: string };

export type Lane = { name: string; pieces: Piece[]; marks: { at: number; said: string }[]; open: boolean };

export function lanesOf(records: RunRecords, now: number): Lane[] {
  const machines = new Map(records.bills.flatMap((bill) => (bill.usage?.timeline ?? []).map((each) => [each.machine, each])));
  return [
    ...records.tasks.filter((task) => task.start_date).map((task) => laneOfTask(task, records.phases(task), now)),
    ...[...machines.values()].filter((each) => each.launched_at).map((each) => laneOfMachine(each, now)),
  ];
}

function laneOfTask(task: Task, phases: TimedPhase[], now: number): Lane {
  const from = Date.parse(task.start_date!);
  const to = task.end_date ? Date.parse(task.end_date) : now;
  const mapped = task.map_index >= 0 ? ` [${task.map_index}]` : "";
  const kind = hasRole(task, "training") ? "working" : "other";
  const marks = phases.flatMap((phase) => (phase.at ? [{ at: Date.parse(phase.at), said: phase.phase }] : []));
  const said = `${task.task_id}: ${task.state ?? "not begun"}`;
  return { name: `${task.task_id}${mapped}`, pieces: [{ from, to, kind, said }], marks, open: !task.end_date };
}

/** Booting until usable, then working in its spans and idle between them; times out of order are sorted. */
export function laneOfMachine(machine: Machine, now: number): Lane {
  const from = Date.parse(machine.launched_at!);
  const to = Math.max(from, machine.gone_at ? Date.parse(machine.gone_at) : now);
  const within = (at: number) => Math.min(to, Math.max(from, at));
  const usable = within(machine.usable_at ? Date.parse(machine.usable_at) : to);
  const worked = joined(machine.worked.map(([start, end]) => [within(Date.parse(start)), within(Date.parse(end))]));
  const name = machine.node || machine.machine;
  const pieces: Piece[] = [];
  const piece = (start: number, end: number, kind: Phase) => {
    if (end > start) pieces.push({ from: start, to: end, kind, said: `${name}: ${kind}` });
  };
  let at = from;
  for (const [start, end] of [...worked, [to, to] as const]) {
    piece(at, Math.min(start, Math.max(at, usable)), "booting");
    piece(Math.max(at, Math.min(start, usable)), start, "idle");
    piece(start, end, "working");
    at = end;
  }
  return { name, pieces, marks: [], open: !machine.gone_at };
}

function joined(spans: [number, number][]): [number, number][] {
  const result: [number, number][] = [];
  for (const [start, end] of spans.filter(([start, end]) => end > start).sort((one, other) => one[0] - other[0])) {
    const last = result.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else result.push([start, end]);
  }
  return result;
}
