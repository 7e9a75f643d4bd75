/** Bounds of a queue, in bytes of data and in items. Whoever fills a full queue has to wait. */
const maxBytes = 1 << 20;
const maxItems = 256;

/** What has come for a consumer until the consumer takes it. */
export class Queue<T> {
  #items: T[] = [];
  #head = 0;
  #bytes = 0;
  #drop: (item: T) => boolean = () => false;
  #ended = false;
  #error: unknown;
  #takers: (() => void)[] = [];
  #fillers: (() => void)[] = [];

  constructor(private readonly size: (item: T) => number) {}

  /** How many items wait. */
  get length(): number {
    return this.#items.length - this.#head;
  }

  /** How many bytes the waiting items have. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Reports whether there is no room for an item, in a queue of so many times the usual size. An empty queue has room. */
  full(item?: T, times = 1): boolean {
    if (this.#ended || this.length === 0 || (item !== undefined && this.#drop(item))) return false;
    return this.length >= times * maxItems || this.#bytes + (item === undefined ? 0 : this.size(item)) > times * maxBytes;
  }

  /** Appends an item, without looking for room. */
  push(item: T): void {
    if (this.#ended || this.#drop(item)) return;
    this.#items.push(item);
    this.#bytes += this.size(item);
    this.#wake(this.#takers);
  }

  /** Removes and returns the first item, if there is one. */
  shift(): T | undefined {
    if (this.length === 0) return undefined;
    const item = this.#items[this.#head] as T;
    this.#items[this.#head++] = undefined as T;
    this.#bytes -= this.size(item);
    if (this.#head === this.#items.length || this.#head > 1024) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    }
    this.#wake(this.#fillers);
    return item;
  }

  /** Waits for an item. It returns undefined after the last one, or throws the error of {@link end}. */
  async take(signal?: AbortSignal): Promise<T | undefined> {
    for (;;) {
      const item = this.shift();
      if (item !== undefined) return item;
      if (this.#ended) {
        if (this.#error !== undefined) throw this.#error;
        return undefined;
      }
      await wakened(this.#takers, signal);
    }
  }

  /** Calls a function once, at the next change that may have made room. It returns what cancels that. */
  onRoom(call: () => void): () => void {
    this.#fillers.push(call);
    return () => {
      const i = this.#fillers.indexOf(call);
      if (i >= 0) this.#fillers.splice(i, 1);
    };
  }

  /** Ends the queue. What is in it can still be taken. Only the first call has an effect. */
  end(error?: unknown): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    this.#wake(this.#takers);
    this.#wake(this.#fillers);
  }

  /** Drops the items for which `drop` returns true: those in the queue, and later ones. */
  discard(drop: (item: T) => boolean): void {
    this.#drop = drop;
    this.#items = this.#items.slice(this.#head).filter((item) => !drop(item));
    this.#head = 0;
    this.#bytes = this.#items.reduce((sum, item) => sum + this.size(item), 0);
    this.#wake(this.#fillers);
  }

  #wake(waiting: (() => void)[]): void {
    for (const call of waiting.splice(0)) call();
  }
}

/** Waits until a list of waiting functions is called, or until the signal, whose reason it then throws. */
export function wakened(waiting: (() => void)[], signal?: AbortSignal): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const wake = (): void => {
      signal?.removeEventListener("abort", abort);
      resolve();
    };
    const abort = (): void => {
      const i = waiting.indexOf(wake);
      if (i >= 0) waiting.splice(i, 1);
      reject(signal?.reason);
    };
    signal?.addEventListener("abort", abort, { once: true });
    waiting.push(wake);
  });
}
