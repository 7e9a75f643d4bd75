import { concat } from "./text.js";

/** Pieces of output. Many small ones are joined, because each takes much more memory than its bytes. */
export class Pieces {
  size = 0;
  #all: Uint8Array[] = [];
  #last: Uint8Array[] = [];
  #lastSize = 0;

  push(piece: Uint8Array): void {
    if (piece.length === 0) return;
    this.size += piece.length;
    this.#lastSize += piece.length;
    if (this.#last.push(piece) < 256) return;
    this.#all.push(...(this.#lastSize < 256 << 10 ? [concat(this.#last)] : this.#last));
    this.#last = [];
    this.#lastSize = 0;
  }

  get list(): readonly Uint8Array[] {
    return [...this.#all, ...this.#last];
  }
}

/** Output that is kept up to a bound: its first half and its last half. */
export class Kept {
  readonly #head = new Pieces();
  readonly #headMost: number;
  readonly #tailMost: number;
  #tail = new Pieces();
  #left = 0; // out, by the agent or here

  constructor(most: number) {
    this.#headMost = Math.ceil(most / 2);
    this.#tailMost = Math.floor(most / 2);
  }

  /** How many bytes were left out between them. */
  get omitted(): number {
    return this.#left + Math.max(0, this.#tail.size - this.#tailMost);
  }

  /** Takes the next piece, before which some bytes were left out. */
  add(piece: Uint8Array, omitted: number): void {
    this.#left += omitted;
    const room = this.#headMost - this.#head.size;
    this.#head.push(piece.subarray(0, room));
    this.#tail.push(piece.subarray(room));
    if (this.#tail.size > 2 * this.#tailMost + (64 << 10)) this.#cut();
  }

  /** Drops what is before the tail. */
  #cut(): void {
    const from = this.#tail.size - this.#tailMost;
    if (from <= 0) return;
    const tail = concat(this.#tail.list).slice(from);
    this.#left += from;
    this.#tail = new Pieces();
    this.#tail.push(tail);
  }

  bytes(): Uint8Array {
    this.#cut();
    return concat([...this.#head.list, ...this.#tail.list]);
  }
}
