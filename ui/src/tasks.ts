// What the states of this package's tasks show between two checks of the cluster.

import { clusterOf, keyOf, meant, once, type PoolId } from "./pools.ts";

export type Task = {
  dag_id: string;
  dag_run_id: string;
  task_id: string;
  map_index: number;
  try_number: number;
  state: string | null;
  operator_name: string | null;
  run_after: string;
  start_date: string | null;
  end_date: string | null;
  rendered_fields?: Record<string, unknown>;
};

/** Those that the page asks for, of airflow_gpu_provider/tasks/roles.py. */
export type Role = "ensure" | "device_plugin" | "training" | "scale_down" | "status" | "doctor" | "reap";

export const OF_A_RUN: readonly Role[] = ["ensure", "device_plugin", "training", "scale_down"];

/** For Airflow's `operator_name_prefix_pattern`: an operator's name begins with the role, a subclass's too. */
export const ofRoles = (...roles: readonly Role[]) => roles.map((role) => `GPU ${role}`).join("|");

export const hasRole = (task: Task, role: Role) => task.operator_name?.startsWith(`${ofRoles(role)}: `) ?? false;

export const LIVE = ["running", "deferred", "queued", "restarting", "up_for_retry", "up_for_reschedule"];

const WAITING = ["queued", "up_for_retry", "up_for_reschedule"];

export type Stage = "waiting" | "booting" | "working" | "draining";

export type LiveRun = { dagId: string; runId: string; pool: PoolId | null; stage: Stage; tasks: Task[] };

/**
 * The pool of a task, from its rendered argument, or the block's name in its id; null if neither has it. A long argument
 * is rendered as text, which Airflow cuts off: its cluster is not known then.
 */
export function poolOf(task: Task): PoolId | null {
  const spec = task.rendered_fields?.gpu_pool;
  if (typeof spec === "object" && spec !== null && "name" in spec) {
    return { name: String(spec.name), cluster: clusterOf(spec as Record<string, unknown>) };
  }
  const named = typeof spec === "string" ? /['"]?\bname['"]?\s*[=:]\s*['"]([^'"]+)['"]/.exec(spec) : null;
  if (named) return { name: named[1]!, cluster: null };
  const group = /^(?:.*\.)?([^.]+)\.(?:ensure|device_plugin|scale_down)$/.exec(task.task_id);
  return group ? { name: group[1]!, cluster: null } : null;
}

export function stageOf(task: Task): Stage {
  if (WAITING.includes(task.state ?? "")) return "waiting";
  if (hasRole(task, "scale_down")) return "draining";
  return hasRole(task, "training") ? "working" : "booting";
}

/** Runs with an unfinished task of this package: one entry per pool of a run. */
export function liveRuns(tasks: readonly Task[]): LiveRun[] {
  const found = new Map<string, LiveRun>();
  const pools = poolsOfRuns(tasks);
  for (const task of tasks) {
    const run = JSON.stringify([task.dag_id, task.dag_run_id]);
    const known = pools.get(run) ?? [];
    const own = poolOf(task);
    const pool = own ? meant(own, known) : known.length === 1 ? known[0]! : null;
    const key = `${run} ${pool && keyOf(pool)}`;
    const entry = found.get(key) ?? newRun(task, pool);
    entry.tasks.push(task);
    entry.stage = later(entry.stage, stageOf(task));
    found.set(key, entry);
  }
  return [...found.values()];
}

const newRun = (task: Task, pool: PoolId | null): LiveRun => ({
  dagId: task.dag_id,
  runId: task.dag_run_id,
  pool,
  stage: "waiting",
  tasks: [],
});

function poolsOfRuns(tasks: readonly Task[]): Map<string, PoolId[]> {
  const pools = new Map<string, PoolId[]>();
  for (const task of tasks) {
    const pool = poolOf(task);
    if (pool === null) continue;
    const run = JSON.stringify([task.dag_id, task.dag_run_id]);
    pools.set(run, [...(pools.get(run) ?? []), pool]);
  }
  return new Map([...pools].map(([run, found]) => [run, once(found.map((pool) => meant(pool, found)))]));
}

/** A run that works is shown as working, whatever else it does. */
function later(one: Stage, other: Stage): Stage {
  const order: Stage[] = ["waiting", "booting", "draining", "working"];
  return order.indexOf(one) >= order.indexOf(other) ? one : other;
}

/** The last ended instance of each task (in one of `states`), newest first. */
export function lastOfEach(tasks: readonly Task[], role: Role, states = ["success", "failed"]): Task[] {
  const last = new Map<string, Task>();
  for (const task of tasks) {
    if (!hasRole(task, role) || !states.includes(task.state ?? "")) continue;
    const key = JSON.stringify([task.dag_id, task.task_id, task.map_index]);
    const known = last.get(key);
    if (!known || endOf(task) > endOf(known)) last.set(key, task);
  }
  return [...last.values()].sort((one, other) => endOf(other) - endOf(one));
}

export const endOf = (task: Task) => Date.parse(task.end_date ?? task.start_date ?? task.run_after);

/** Tasks in the order in which they began, those that have not begun last; a mapped task's instances by their index. */
export function inOrderOfBegin(tasks: readonly Task[]): Task[] {
  const begun = new Map<string, number>();
  for (const task of tasks) {
    const at = task.start_date ? Date.parse(task.start_date) : Infinity;
    begun.set(task.task_id, Math.min(begun.get(task.task_id) ?? Infinity, at));
  }
  const order = (one: Task, other: Task) => {
    const [first, second] = [begun.get(one.task_id)!, begun.get(other.task_id)!];
    return first === second ? one.task_id.localeCompare(other.task_id) || one.map_index - other.map_index : first - second;
  };
  return [...tasks].sort(order);
}

const HALF_AN_HOUR = 30 * 60_000;

/** Milliseconds between two scheduled checks: the shortest observed, or half an hour as in example_dags/janitor.py. */
export function lookPeriod(looks: readonly Task[]): number {
  const times = [...new Set(looks.filter((each) => each.dag_run_id.startsWith("scheduled__")).map((each) => each.run_after))]
    .map((at) => Date.parse(at))
    .sort((one, other) => one - other);
  const gaps = times.slice(1).map((at, index) => at - times[index]!);
  return gaps.length ? Math.min(...gaps) : HALF_AN_HOUR;
}
