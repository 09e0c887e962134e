// Loads something, and reloads it while the page is visible; the old data stays shown meanwhile.

import { useCallback, useEffect, useRef, useState } from "react";

import { inWords } from "./api.ts";

export type Loaded<T> = { value: T | null; error: string; reload: () => void };

const kept = new Map<string, unknown>();

/**
 * The first `load` may show a part before it has everything. `name` is the cache key for the page's next visit, `every`
 * the milliseconds between two loads; 0: once. A hidden page requests nothing; it reloads at once when it becomes
 * visible again and a load is due.
 */
export function useLoaded<T>(name: string, load: (show?: (part: T) => void) => Promise<T>, every: number): Loaded<T> {
  const [value, setValue] = useState<T | null>((kept.get(name) as T | undefined) ?? null);
  const [error, setError] = useState("");
  const latest = useRef(load);
  latest.current = load;
  const last = useRef(-Infinity);

  const reload = useCallback(async () => {
    last.current = Date.now();
    try {
      const found = await latest.current(kept.has(name) ? undefined : setValue);
      kept.set(name, found);
      setValue(found);
      setError("");
    } catch (problem) {
      setError(inWords(problem));
    }
  }, [name]);

  useEffect(() => {
    void reload();
    if (!every) return undefined;
    const ask = () => {
      if (!document.hidden && Date.now() - last.current >= every) void reload();
    };
    const timer = window.setInterval(ask, Math.min(every, 5_000));
    document.addEventListener("visibilitychange", ask);
    return () => {
      window.clearInterval(timer);
      document.removeEventListener("visibilitychange", ask);
    };
  }, [reload, every]);

  return { value, error, reload: () => void reload() };
}
