/** More memory than this is not kept for what comes next. */
const keptMost = 4 << 20;

/**
 * Bytes that have come and were not taken yet. Its memory is used again, because new memory for each message costs most of
 * the time of a flood: whoever keeps a part copies it.
 */
export class Held<Bytes extends Uint8Array> {
  #memory: Bytes;
  #from = 0;
  #to = 0;

  constructor(private readonly make: (size: number) => Bytes) {
    this.#memory = make(0);
  }

  get length(): number {
    return this.#to - this.#from;
  }

  /** All of them. They are valid until the next {@link push}. */
  get bytes(): Bytes {
    return this.#memory.subarray(this.#from, this.#to) as Bytes;
  }

  push(piece: Uint8Array): void {
    if (piece.length === 0) return;
    const { length } = this;
    const size = length + piece.length;
    if (length === 0 && this.#memory.length > keptMost) this.#memory = this.make(0);
    if (this.#to + piece.length > this.#memory.length) {
      const into = size <= this.#memory.length ? this.#memory : this.make(Math.max(2 * size, 256 << 10));
      into.set(this.bytes);
      this.#memory = into;
      this.#from = 0;
      this.#to = length;
    }
    this.#memory.set(piece, this.#to);
    this.#to += piece.length;
  }

  /** Drops the first ones. */
  drop(size: number): void {
    this.#from += size;
  }
}
