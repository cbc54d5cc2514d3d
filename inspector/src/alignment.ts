/** Two sequences side by side: items of both share a row, and items of only one have rows in between. */

// A table of so many cells takes 10 to 15 ms; longer sequences are aligned by number.
const MOST_CELLS = 4_000_000;

export type Aligned<T> = [T | undefined, T | undefined];

/** Align two sequences by their longest common part; between two common items the others are paired in order. */
export function aligned<T>(left: readonly T[], right: readonly T[], keyOf: (each: T) => string): Aligned<T>[] {
  const numbers = new Map<string, number>();
  const numberOf = (each: T): number => {
    const key = keyOf(each);
    return numbers.get(key) ?? (numbers.set(key, numbers.size), numbers.size - 1);
  };
  const [ours, theirs] = [left.map(numberOf), right.map(numberOf)];
  let same = 0;
  while (same < ours.length && same < theirs.length && ours[same] === theirs[same]) same += 1;
  const rows: Aligned<T>[] = left.slice(0, same).map((each, at) => [each, right[at]]);
  const [restOfOurs, restOfTheirs] = [ours.slice(same), theirs.slice(same)];
  const matches = matchesOf(restOfOurs, restOfTheirs).map(([a, b]) => [a + same, b + same] as const);
  let [a, b] = [same, same];
  for (const [nextA, nextB] of [...matches, [left.length, right.length] as const]) {
    for (; a < nextA || b < nextB; a += 1, b += 1) {
      rows.push([a < nextA ? left[a] : undefined, b < nextB ? right[b] : undefined]);
    }
    [a, b] = [nextA + 1, nextB + 1];
    if (nextA < left.length && nextB < right.length) rows.push([left[nextA], right[nextB]]);
  }
  return rows;
}

/** Return the places of the longest common part in both. */
function matchesOf(ours: readonly number[], theirs: readonly number[]): [number, number][] {
  const width = theirs.length + 1;
  if ((ours.length + 1) * width > MOST_CELLS) return [];
  // How long the common part is from one place in each on.
  const lengths = new Uint16Array((ours.length + 1) * width);
  for (let a = ours.length - 1; a >= 0; a -= 1) {
    for (let b = theirs.length - 1; b >= 0; b -= 1) {
      const at = a * width + b;
      lengths[at] =
        ours[a] === theirs[b] ? lengths[at + width + 1]! + 1 : Math.max(lengths[at + width]!, lengths[at + 1]!);
    }
  }
  const found: [number, number][] = [];
  for (let a = 0, b = 0; a < ours.length && b < theirs.length; ) {
    if (ours[a] === theirs[b]) found.push([a++, b++]);
    else if (lengths[(a + 1) * width + b]! >= lengths[a * width + b + 1]!) a += 1;
    else b += 1;
  }
  return found;
}
