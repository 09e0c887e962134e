// The page's first screen: what runs now, how the last night went, and which pools need somebody first. Pure.

import type { Now, PoolNow } from "./load.ts";
import { add, beginOf, type Amounts, type Night, noTotal, type Total } from "./nights.ts";
import { runOfLease } from "./records.ts";
import { endOf, type LiveRun, type Stage } from "./tasks.ts";

const A_DAY = 86_400_000;

/** How many runs are in which stage, and what all pools cost an hour, by currency; `unpriced` pools have no price. */
export type Running = { runs: number; stages: ReadonlyMap<SeenStage, number>; nodes: number; cost: Amounts; unpriced: number };

/** As Stage; but a training whose pod no check has seen is not called working. */
export type SeenStage = Stage | "waiting for its pod" | "not checked yet";

/** The stage of a run, by its tasks and by what the last check of its pool saw. */
export function seenStage(run: LiveRun, seen: PoolNow | undefined): SeenStage {
  if (run.stage !== "working" || !seen) return run.stage;
  const runs = seen.status.machines.map((machine) => machine.runs);
  if (runs.some((each) => each?.includes(`${run.dagId}/${run.runId}`))) return "working";
  if (runs.includes(null)) return "working"; // a record of an earlier release
  const begun = Math.min(...run.tasks.filter((task) => task.start_date).map((task) => Date.parse(task.start_date!)));
  return Date.parse(seen.at) > begun ? "waiting for its pod" : "not checked yet";
}

export function running(now: Now, seenOf: (run: LiveRun) => PoolNow | undefined): Running {
  const stages = new Map<SeenStage, number>();
  for (const run of now.live) {
    const stage = seenStage(run, seenOf(run));
    stages.set(stage, (stages.get(stage) ?? 0) + 1);
  }
  const cost: Record<string, number> = {};
  for (const { status } of now.pools) {
    if (status.cost_per_hour) cost[status.currency] = (cost[status.currency] ?? 0) + status.cost_per_hour;
  }
  return {
    runs: now.live.length,
    stages,
    nodes: now.pools.reduce((sum, { status }) => sum + status.machines.length, 0),
    cost,
    unpriced: now.pools.filter(({ status }) => status.machines.length > 0 && status.cost_per_hour === null).length,
  };
}

/** All nights that were due in the 24 hours before the newest one, that one included; null where there is none. */
export function lastNight(nights: readonly Night[]): { at: string; total: Total; failed: Night[] } | null {
  const newest = nights.reduce((last, night) => (beginOf(night) > last ? beginOf(night) : last), "");
  if (!newest) return null;
  const of = nights.filter((night) => Date.parse(newest) - Date.parse(beginOf(night)) < A_DAY);
  return { at: newest, total: of.reduce(add, noTotal()), failed: of.filter((night) => night.red) };
}

/** Why somebody has to look at a pool first; "" where nobody has to. */
export function needOf(seen: PoolNow | undefined, live: readonly LiveRun[], nights: readonly Night[], now: Now): string {
  const last = nights.reduce<Night | null>((one, other) => (!one || beginOf(other) > beginOf(one) ? other : one), null);
  const isSeenSince = last && seen && Date.parse(seen.at) > endOf(last.task);
  const left = seen?.status.machines.length ?? 0;
  if (last?.task.state === "failed" && (!isSeenSince || left)) return "Its last scale-down failed.";
  if (seen?.status.unwanted && !live.length) return "It has machines that no run wants.";
  const leftovers = now.leftovers.filter(({ leftover }) => seen?.status.pool.name === leftover.pool);
  return leftovers.length ? "The janitor could not remove what is left of it." : "";
}

/** Whether anything of a pool is there or wanted now. */
export function isInUse(seen: PoolNow | undefined, live: readonly LiveRun[]): boolean {
  if (live.length) return true;
  if (!seen) return false;
  const { machines, leases, wanted } = seen.status;
  return machines.length > 0 || (wanted ?? 0) > 0 || leases.some((lease) => lease.live && runOfLease(lease.run) !== null);
}
