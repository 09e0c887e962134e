// Times, durations and money for display. An unknown value is shown as "unknown", never as 0.

export const UNKNOWN = "unknown";

/** A share in whole percent. */
export const percent = (share: number) => `${Math.round(share * 100)} %`;

/** What the currency of money at a cloud's list prices ends with. */
export const LISTED = " (list price)";

/** Whether all of this money goes by list prices, so that a table's head has that once. */
export const areListed = (currencies: readonly string[]) => currencies.length > 0 && currencies.every((each) => each.endsWith(LISTED));

/** A currency without whose prices it goes by. */
export const plain = (currency: string) => (currency.endsWith(LISTED) ? currency.slice(0, -LISTED.length) : currency);

/** A text's first sentence, and the rest of it. */
export function firstSentence(text: string): [string, string] {
  const end = /[.!?](?=\s)|\n/.exec(text);
  if (!end) return [text, ""];
  const at = end.index + (end[0] === "\n" ? 0 : 1);
  return [text.slice(0, at), text.slice(at).trim()];
}

/** Money with its currency, or "unknown". Bills of an earlier release name no currency. */
export function money(cost: number | null, currency: string): string {
  if (cost === null) return UNKNOWN;
  return `${cost >= 1 || cost === 0 ? cost.toFixed(2) : cost.toFixed(4)} ${currency}`.trimEnd();
}

export function duration(seconds: number | null): string {
  if (seconds === null) return UNKNOWN;
  if (seconds < 600) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** A duration in the unit used for the longest of several, for an axis. */
export function inUnitOf(longest: number, seconds: number): string {
  if (longest < 600) return duration(seconds);
  return longest < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** The time zone chosen in Airflow's own menu, otherwise the browser's. */
export function timeZone(): string {
  const chosen = readChosenZone();
  try {
    return new Intl.DateTimeFormat("en-GB", { timeZone: chosen }).resolvedOptions().timeZone;
  } catch {
    return "UTC";
  }
}

function readChosenZone(): string | undefined {
  const text = globalThis.localStorage?.getItem("timezone");
  if (!text) return undefined;
  try {
    return String(JSON.parse(text));
  } catch {
    return text;
  }
}

const part = (at: string | number, options: Intl.DateTimeFormatOptions) =>
  new Intl.DateTimeFormat("en-GB", { timeZone: timeZone(), ...options }).format(new Date(at));

export const clock = (at: string | number) => part(at, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The day of a time as 2026-03-01, which sorts. */
export function day(at: string | number): string {
  return new Intl.DateTimeFormat("sv-SE", { timeZone: timeZone(), dateStyle: "short" }).format(new Date(at));
}

/** Day, hour and minute. */
export const moment = (at: string | number) => `${day(at)} ${part(at, { hour: "2-digit", minute: "2-digit" })}`;

export const count = (number: number, one: string, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
