// Airflow's public REST API, with the session of the page's user.

export class ApiError extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const LIMIT = 100; // Airflow's own default of [api] maximum_page_limit

export const segment = encodeURIComponent;

export const runPath = (dagId: string, runId: string) => `dags/${segment(dagId)}/dagRuns/${segment(runId)}`;

export type Query = Record<string, string | number | readonly string[]>;

function urlOf(path: string, query: Query = {}): URL {
  const url = new URL(`api/v2/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(each));
  }
  return url;
}

export const get = <T>(path: string, query?: Query) => call<T>("GET", urlOf(path, query));
export const post = <T>(path: string, body: unknown) => call<T>("POST", urlOf(path), body);
export const patch = <T>(path: string, body: unknown) => call<T>("PATCH", urlOf(path), body);

async function call<T>(method: string, url: URL, body?: unknown): Promise<T> {
  const response = await fetch(url, {
    method,
    credentials: "same-origin",
    headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.status === 401) {
    logIn();
    throw new ApiError(401, "You are logged out.");
  }
  if (!response.ok) throw new ApiError(response.status, await refusal(response));
  return (await response.json()) as T;
}

let leftAt = -Infinity;

/** Several requests are refused at once, and a second navigation would cancel the first. */
function logIn() {
  if (Date.now() - leftAt < 10_000) return;
  leftAt = Date.now();
  window.location.assign(urlOf("auth/login", { next: window.location.href }));
}

async function refusal(response: Response): Promise<string> {
  const said = await detail(response);
  if (response.status === 403) return `Airflow does not allow you to do this${said ? `: ${said}` : ""}.`;
  return said ? `Airflow answered: ${said}` : `Airflow answered with status ${response.status}.`;
}

async function detail(response: Response): Promise<string> {
  try {
    const body: unknown = await response.json();
    const said = typeof body === "object" && body !== null && "detail" in body ? body.detail : "";
    return (typeof said === "string" ? said : JSON.stringify(said)).replace(/\.$/, "");
  } catch {
    return "";
  }
}

/** All pages of a list, at most `most` entries; `total` counts all existing ones. */
export async function list<T>(path: string, name: string, query: Query, most: number): Promise<{ found: T[]; total: number }> {
  const found: T[] = [];
  for (;;) {
    const limit = Math.min(LIMIT, most - found.length);
    const page = await get<Record<string, unknown>>(path, { ...query, limit, offset: found.length });
    const entries = (page[name] ?? []) as T[];
    const total = typeof page.total_entries === "number" ? page.total_entries : found.length + entries.length;
    found.push(...entries);
    if (!entries.length || found.length >= Math.min(most, total)) return { found, total };
  }
}

/** Call `make` for each, six at a time. */
export async function eachOf<T, R>(items: readonly T[], make: (item: T) => Promise<R>): Promise<R[]> {
  const results = new Array<R>(items.length);
  let next = 0;
  const worker = async () => {
    for (let index = next++; index < items.length; index = next++) results[index] = await make(items[index]!);
  };
  await Promise.all(Array.from({ length: Math.min(6, items.length) }, worker));
  return results;
}

/** A failure as a sentence. */
export const inWords = (error: unknown) =>
  error instanceof ApiError ? error.message : "Airflow's API server did not answer.";
