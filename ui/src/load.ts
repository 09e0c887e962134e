// What the page requests, and how often. Two lists per refresh for any number of pools; XCom values once each, since a
// value that a task left does not change: they are cached while the tab is open, whichever of its pages is shown.

import { ApiError, eachOf, get, list, post, runPath, segment } from "./api.ts";
import type { Night } from "./nights.ts";
import { dagsOf, keyOf as keyOfPool, type PoolId } from "./pools.ts";
import {
  type Failure,
  type Finding,
  inOrder,
  type Leftover,
  readExtends,
  readFailure,
  readFindings,
  readLeft,
  readStatus,
  readUsage,
  type Status,
  xcomValue,
} from "./records.ts";
import { lastOfEach, LIVE, type LiveRun, liveRuns, lookPeriod, ofRoles, OF_A_RUN, poolOf, type Task } from "./tasks.ts";

export const DAYS = 30;
const MOST_NIGHTS = 500;
const MOST_FAILURES = 100; // the list shows 50 nights
const FIRST = 6; // as many as a browser requests at once: each bill is one request
const FINISHED: readonly string[] = ["success", "failed"];
const ALL_TASKS = "dags/~/dagRuns/~/taskInstances";

export type Entry = { dag_id: string; run_id: string; task_id: string; map_index: number; key: string; timestamp: string };

const values = new Map<string, unknown>();

export const entriesPath = (dagId: string, runId: string, taskId: string) =>
  `${runPath(dagId, runId)}/taskInstances/${segment(taskId)}/xcomEntries`;

/** The value of an entry; without a request if it was read before. */
export async function valueOf(entry: Entry): Promise<unknown> {
  const id = JSON.stringify([entry.dag_id, entry.run_id, entry.task_id, entry.map_index, entry.key, entry.timestamp]);
  if (!values.has(id)) {
    const path = `${entriesPath(entry.dag_id, entry.run_id, entry.task_id)}/${segment(entry.key)}`;
    const answer = await get<{ value: unknown }>(path, { map_index: entry.map_index });
    values.set(id, xcomValue(answer.value));
  }
  return values.get(id);
}

const keyOf = (entry: { dag_id: string; task_id: string; map_index: number }, runId: string) =>
  JSON.stringify([entry.dag_id, runId, entry.task_id, entry.map_index]);

const looked = new Map<string, Entry[]>();

/** The entries that a finished task left; listed once, since reading a missing entry is an error. */
async function entriesOf(task: Task): Promise<Entry[]> {
  const id = JSON.stringify([keyOf(task, task.dag_run_id), task.end_date]);
  if (!looked.has(id)) {
    const path = entriesPath(task.dag_id, task.dag_run_id, task.task_id);
    const answer = await get<{ xcom_entries: Entry[] }>(path, { map_index: task.map_index, limit: 100 });
    looked.set(id, answer.xcom_entries);
  }
  return looked.get(id)!;
}

async function valueLeft(task: Task, ...keys: string[]): Promise<unknown> {
  const entries = await entriesOf(task);
  const entry = keys.map((key) => entries.find((each) => each.key === key)).find(Boolean);
  return entry ? valueOf(entry) : null;
}

export type PoolNow = { status: Status; at: string; task: Task };

export type Look = { task: Task; why: string };

export type Now = {
  live: LiveRun[];
  pools: PoolNow[];
  findings: { finding: Finding; task: Task }[];
  leftovers: { leftover: Leftover; task: Task }[];
  unreadable: Look[];
  red: Look[];
  running: Task[];
  /** The DAG that extends runs on a pool, by the pool's key; none for a pool without one. */
  extenders: Map<string, string>;
  period: number;
  at: number;
};

export async function loadNow(): Promise<Now> {
  const ofARun = { operator_name_prefix_pattern: ofRoles(...OF_A_RUN), state: LIVE, order_by: "-run_after" };
  const ofLooks = { operator_name_prefix_pattern: ofRoles("status", "doctor", "reap"), order_by: "-run_after" };
  const [live, looks, extending] = await Promise.all([
    list<Task>(ALL_TASKS, "task_instances", ofARun, 100),
    list<Task>(ALL_TASKS, "task_instances", ofLooks, 100),
    list<Entry>(`${ALL_TASKS}/~/xcomEntries`, "xcom_entries", { xcom_key: "extends_pools", order_by: "-run_after" }, 100),
  ]);
  const tasks = looks.found;
  const unreadable: Look[] = [];
  return {
    live: liveRuns(live.found),
    pools: await poolsNow(tasks, unreadable),
    findings: await findingsNow(tasks, unreadable),
    leftovers: await leftoversNow(tasks),
    unreadable,
    red: redLooks(tasks),
    running: tasks.filter((each) => LIVE.includes(each.state ?? "") || each.state === "scheduled"),
    extenders: await extendersOf(extending.found),
    period: lookPeriod(tasks),
    at: Date.now(),
  };
}

async function poolsNow(tasks: Task[], unreadable: Look[]): Promise<PoolNow[]> {
  const pools = new Map<string, PoolNow>();
  for (const task of lastOfEach(tasks, "status", ["success"])) {
    const value = await valueLeft(task, "return_value");
    if (!Array.isArray(value)) unreadable.push({ task, why: whyUnreadable(value) });
    for (const status of readStatus(value)) {
      const at = task.end_date ?? task.run_after;
      const key = keyOfPool(status.pool);
      if (!pools.has(key)) pools.set(key, { status, at, task });
    }
  }
  return [...pools.values()];
}

/** By what each DAG's task has left last, and no other DAG: a pool's runs are extended by a DAG that had the pool. */
async function extendersOf(entries: Entry[]): Promise<Map<string, string>> {
  const last = new Map<string, Entry>();
  for (const entry of entries) {
    const task = JSON.stringify([entry.dag_id, entry.task_id]);
    if (!last.has(task)) last.set(task, entry);
  }
  const read = async (entry: Entry) => ({
    dagId: entry.dag_id,
    pools: readExtends(await valueOf(entry).catch((): PoolId[] => [])),
  });
  return dagsOf(await eachOf([...last.values()], read));
}

async function findingsNow(tasks: Task[], unreadable: Look[]) {
  const found: Now["findings"] = [];
  for (const task of lastOfEach(tasks, "doctor")) {
    const value = await valueLeft(task, "findings", "return_value");
    if (!Array.isArray(value) && task.state === "success") unreadable.push({ task, why: whyUnreadable(value) });
    found.push(...readFindings(value).map((finding) => ({ finding, task })));
  }
  return found;
}

async function leftoversNow(tasks: Task[]) {
  const found: Now["leftovers"] = [];
  for (const task of lastOfEach(tasks, "reap")) {
    const value = await valueLeft(task, "reaped", "return_value");
    found.push(...readLeft(value).map((leftover) => ({ leftover, task })));
  }
  return found;
}

/** Checks whose last run failed without a result: what the page shows of them is outdated. */
const redLooks = (tasks: Task[]): Look[] =>
  lastOfEach(tasks, "status")
    .filter((task) => task.state === "failed")
    .map((task) => ({ task, why: "failed" }));

export function whyUnreadable(value: unknown): string {
  if (value === null || value === undefined) return "left no value";
  return typeof value === "string"
    ? "left its value with a custom XCom backend, which a browser cannot read"
    : "left a value of another form";
}

/**
 * `total` counts all nights, `unread` those still to be read. `blind`: the user may not read DAG runs, so that only
 * scale-downs show a failure.
 */
export type Nights = { nights: Night[]; total: number; unread: number; blind: boolean };

/** The nights of the last 30 days, newest first; if there are many, `show` gets the newest of them earlier. */
export async function loadNights(show?: (some: Nights) => void, now = Date.now()): Promise<Nights> {
  const since = new Date(now - DAYS * 86_400_000).toISOString();
  if (show) {
    const newest = await newestNights(FIRST, since);
    if (!newest.unread) return newest;
    show(newest);
  }
  return newestNights(MOST_NIGHTS, since);
}

async function newestNights(most: number, since: string): Promise<Nights> {
  const query = { run_after_gte: since, order_by: "-run_after" };
  const [tasks, usages, errors] = await Promise.all([
    list<Task>(ALL_TASKS, "task_instances", { operator_name_prefix_pattern: ofRoles("scale_down"), ...query }, most),
    list<Entry>(`${ALL_TASKS}/~/xcomEntries`, "xcom_entries", { xcom_key: "usage", ...query }, most),
    list<Entry>(`${ALL_TASKS}/~/xcomEntries`, "xcom_entries", { xcom_key: "error", ...query }, most),
  ]);
  const left = new Map(usages.found.map((entry) => [keyOf(entry, entry.run_id), entry]));
  const entryOf = (task: Task) => left.get(keyOf(task, task.dag_run_id));
  const areAll = most === MOST_NIGHTS || tasks.total <= most;
  // With only a part, the newest tasks and the newest bills may be of different nights.
  const ended = tasks.found.filter((task) => FINISHED.includes(task.state ?? "") && (areAll || entryOf(task)));
  const [failed, bills] = await Promise.all([
    failedRuns([...new Set(ended.map((task) => task.dag_id))], since),
    eachOf(ended, (task) => billOf(entryOf(task))),
  ]);
  const isRed = (task: Task) => task.state === "failed" || Boolean(failed?.has(runOf(task)));
  const failures = await failuresOf(new Set(ended.filter(isRed).map(runOf)), errors.found);
  const nights = ended.map((task, index) => ({
    ...bills[index]!,
    task,
    pool: poolOf(task),
    red: isRed(task),
    failure: inOrder(failures.get(runOf(task)) ?? [])[0] ?? null,
  }));
  return { nights, total: tasks.total, unread: areAll ? 0 : tasks.total - nights.length, blind: failed === null };
}

const runOf = (task: Task) => runPath(task.dag_id, task.dag_run_id);

/** The errors of these runs, by the run's path; what a custom XCom backend keeps elsewhere is left out. */
async function failuresOf(runs: ReadonlySet<string>, entries: readonly Entry[]): Promise<Map<string, Failure[]>> {
  const found = new Map<string, Failure[]>();
  const wanted = entries.filter((entry) => runs.has(runPath(entry.dag_id, entry.run_id))).slice(0, MOST_FAILURES);
  await eachOf(wanted, async (entry) => {
    const failure = readFailure(await valueOf(entry).catch(() => null));
    const run = runPath(entry.dag_id, entry.run_id);
    if (failure) found.set(run, [...(found.get(run) ?? []), failure]);
  });
  return found;
}

/** The paths of the runs that failed; null where the user may not read runs. */
async function failedRuns(dagIds: string[], since: string): Promise<Set<string> | null> {
  const failed = new Set<string>();
  const query = { dag_ids: dagIds, states: ["failed"], run_after_gte: since, order_by: "-run_after", page_limit: 100 };
  for (let seen = 0; dagIds.length && seen < MOST_NIGHTS; seen += query.page_limit) {
    const answer = await post<Runs>("dags/~/dagRuns/list", { ...query, page_offset: seen }).catch(unlessForbidden);
    if (!answer) return null;
    for (const run of answer.dag_runs) failed.add(runPath(run.dag_id, run.dag_run_id));
    if (seen + query.page_limit >= (answer.total_entries ?? 0)) break;
  }
  return failed;
}

type Runs = { dag_runs: { dag_id: string; dag_run_id: string }[]; total_entries: number | null };

function unlessForbidden(error: unknown): null {
  if (error instanceof ApiError && error.status === 403) return null;
  throw error;
}

async function billOf(entry: Entry | undefined): Promise<Pick<Night, "usage" | "why">> {
  if (!entry) return { usage: null, why: "left no bill" };
  try {
    const value = await valueOf(entry);
    const usage = readUsage(value);
    return { usage, why: usage ? "" : whyUnreadable(value) };
  } catch (error) {
    const why = error instanceof Error ? error.message : "could not be read";
    return { usage: null, why };
  }
}
