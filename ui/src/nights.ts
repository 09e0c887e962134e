// Bills added up: by day for the chart, and by DAG. Pure.

import { runPath } from "./api.ts";
import { day } from "./format.ts";
import { type Computed, type Failure, PHASES, type Phase, type Usage } from "./records.ts";
import type { PoolId } from "./pools.ts";
import type { Task } from "./tasks.ts";

/**
 * One scale-down and its bill; null if it left no readable bill. Red: it failed, or its run did; then with the error of
 * the run, if it is known.
 */
export type Night = {
  task: Task;
  pool: PoolId | null;
  usage: Usage | null;
  why: string;
  red: boolean;
  failure: Failure | null;
};

/** The night: when its run was due. A rerun days later belongs to the same night. */
export const beginOf = ({ task }: Night): string => task.run_after;

/** Amounts of money by their currency: those of different currencies are not added up. */
export type Amounts = Readonly<Record<string, number>>;

export type Total = {
  seconds: Record<Phase, number>;
  autoscaler: number;
  cost: Amounts;
  extra: Amounts;
  /** Bills: one per block of a run. */
  nights: number;
  runs: ReadonlySet<string>;
  redRuns: ReadonlySet<string>;
  withoutCost: number;
  withoutBill: number;
  withoutAutoscaler: number;
  atLeast: number;
  /** Seconds of work with known GPU use, and in how many of these the GPUs computed. */
  sampled: number;
  computed: number;
};

export const noTotal = (): Total => ({
  seconds: { booting: 0, working: 0, idle: 0 },
  autoscaler: 0,
  cost: {},
  extra: {},
  nights: 0,
  runs: new Set(),
  redRuns: new Set(),
  withoutCost: 0,
  withoutBill: 0,
  withoutAutoscaler: 0,
  atLeast: 0,
  sampled: 0,
  computed: 0,
});

export const allSeconds = (seconds: Record<Phase, number>) => PHASES.reduce((sum, phase) => sum + seconds[phase], 0);

/** The extra cost of an autoscaler, never below 0; null if one of the two costs is unknown. */
export function extraCost(usage: Usage): number | null {
  const other = usage.autoscaler?.cost ?? null;
  return other === null || usage.cost.total === null ? null : Math.max(0, other - usage.cost.total);
}

const plus = (amounts: Amounts, more: number | null, currency: string): Amounts =>
  more === null ? amounts : { ...amounts, [currency]: (amounts[currency] ?? 0) + more };

export function add(total: Total, night: Night): Total {
  const usage = night.usage;
  const run = runPath(night.task.dag_id, night.task.dag_run_id);
  const runs = new Set([...total.runs, run]);
  const redRuns = night.red ? new Set([...total.redRuns, run]) : total.redRuns;
  if (!usage) return { ...total, runs, redRuns, nights: total.nights + 1, withoutBill: total.withoutBill + 1 };
  const extra = extraCost(usage);
  const sampled = usage.seconds.working * (usage.computed?.known ?? 0);
  return {
    seconds: {
      booting: total.seconds.booting + usage.seconds.booting,
      working: total.seconds.working + usage.seconds.working,
      idle: total.seconds.idle + usage.seconds.idle,
    },
    // If unknown, the bar next to it is as high as the run's own: an autoscaler's is never shown as lower.
    autoscaler: total.autoscaler + Math.max(usage.autoscaler?.seconds ?? 0, allSeconds(usage.seconds)),
    cost: plus(total.cost, usage.cost.total, usage.currency),
    extra: plus(total.extra, extra, usage.currency),
    nights: total.nights + 1,
    runs,
    redRuns,
    withoutCost: total.withoutCost + (usage.cost.total === null ? 1 : 0),
    withoutBill: total.withoutBill,
    withoutAutoscaler: total.withoutAutoscaler + (extra === null ? 1 : 0),
    atLeast: total.atLeast + (usage.at_least ? 1 : 0),
    sampled: total.sampled + sampled,
    computed: total.computed + sampled * (usage.computed?.share ?? 0),
  };
}

/** GPU use over all nights for which it is known; null if it is known for none. */
export function computedIn(total: Total): Computed | null {
  if (!total.sampled) return null;
  return { share: total.computed / total.sampled, known: total.sampled / total.seconds.working };
}

export type Day = { day: string; total: Total };

/** The last `days` days up to `now`, including those without a night. */
export function byDay(nights: readonly Night[], now: number, days = 30): Day[] {
  const totals = new Map<string, Total>();
  for (const night of nights) {
    const at = day(beginOf(night));
    totals.set(at, add(totals.get(at) ?? noTotal(), night));
  }
  const shown = Array.from({ length: days }, (_, back) => day(now - (days - 1 - back) * 86_400_000));
  return [...new Set(shown)].map((each) => ({ day: each, total: totals.get(each) ?? noTotal() }));
}

export type OfDag = { dagId: string; total: Total };

/** Totals per DAG, the one with the most node time first. */
export function byDag(nights: readonly Night[]): OfDag[] {
  const totals = new Map<string, Total>();
  for (const night of nights) {
    totals.set(night.task.dag_id, add(totals.get(night.task.dag_id) ?? noTotal(), night));
  }
  return [...totals]
    .map(([dagId, total]) => ({ dagId, total }))
    .sort((one, other) => allSeconds(other.total.seconds) - allSeconds(one.total.seconds));
}
