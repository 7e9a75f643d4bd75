import { UsageError } from "../errors.js";

/** A value of a TOML document. */
export type Value = string | number | bigint | boolean | Date | Value[] | Table;

/** A table. It has no prototype. */
export interface Table {
  [key: string]: Value;
}

const maxNesting = 8;

/**
 * Reads a TOML 1.0 document. No error quotes the text, because it may be a secret. Dates are checked by their shape, and
 * returned as text.
 */
export function parseTOML(text: string, path: string): Table {
  return new Parser(text.replace(/\r\n/g, "\n"), path).document();
}

const table = (): Table => Object.create(null) as Table;

class Parser {
  #at = 0;
  /** Tables that a header or an inline table has closed for others. */
  readonly #defined = new Set<Table>();
  readonly #closed = new Set<unknown>();

  constructor(
    private readonly text: string,
    private readonly path: string,
  ) {}

  document(): Table {
    const root = table();
    let current = root;
    for (;;) {
      this.#blank(true);
      if (this.#at >= this.text.length) return root;
      if (this.text[this.#at] === "[") current = this.#header(root);
      else this.#pair(current, true);
      this.#blank(false);
      if (this.#at < this.text.length && this.text[this.#at] !== "\n") this.#fail("not TOML");
    }
  }

  #fail(what: string): never {
    const line = this.text.slice(0, this.#at).split("\n").length;
    throw new UsageError(`${this.path}:${line}: ${what}`);
  }

  /** Passes over blanks and comments, and with `lines` over ends of lines. */
  #blank(lines: boolean): void {
    for (;;) {
      const c = this.text[this.#at];
      if (c === " " || c === "\t" || (lines && c === "\n")) this.#at++;
      else if (c === "#") {
        while (this.#at < this.text.length && this.text[this.#at] !== "\n") {
          if (/[\u0000-\u0008\u000b-\u001f\u007f]/.test(this.text[this.#at] as string)) this.#fail("a comment has a control character");
          this.#at++;
        }
      } else return;
    }
  }

  #eat(word: string): boolean {
    if (!this.text.startsWith(word, this.#at)) return false;
    this.#at += word.length;
    return true;
  }

  #keys(): string[] {
    const keys: string[] = [];
    do {
      this.#blank(false);
      const bare = /[A-Za-z0-9_-]+/y;
      bare.lastIndex = this.#at;
      const found = bare.exec(this.text)?.[0];
      if (found !== undefined) {
        this.#at += found.length;
        keys.push(found);
      } else if (this.text[this.#at] === '"' || this.text[this.#at] === "'") {
        keys.push(this.#string(false));
      } else this.#fail("not TOML");
      if (keys.length > maxNesting) this.#fail(`nested deeper than ${maxNesting}`);
      this.#blank(false);
    } while (this.#eat("."));
    return keys;
  }

  #header(root: Table): Table {
    const many = this.#eat("[[");
    if (!many) this.#at++;
    const keys = this.#keys();
    if (!this.#eat(many ? "]]" : "]")) this.#fail("not TOML");
    const last = keys.pop() as string;
    let at = root;
    for (const key of keys) at = this.#enter(at, key);
    const old = at[last];
    if (many) {
      const list = old ?? (at[last] = []);
      if (!Array.isArray(list) || this.#closed.has(list)) this.#twice();
      const made = table();
      list.push(made);
      return made;
    }
    if (old === undefined) {
      const made = (at[last] = table());
      this.#defined.add(made);
      return made;
    }
    if (!isTable(old) || this.#defined.has(old) || this.#closed.has(old)) this.#twice();
    this.#defined.add(old);
    return old;
  }

  #twice(): never {
    this.#fail("this table or key is defined twice");
  }

  #enter(at: Table, key: string): Table {
    const next = at[key] ?? (at[key] = table());
    const inner = Array.isArray(next) && !this.#closed.has(next) ? next.at(-1) : next;
    if (inner === undefined || !isTable(inner) || this.#closed.has(inner)) this.#twice();
    return inner;
  }

  #pair(into: Table, top: boolean): void {
    const keys = this.#keys();
    if (!this.#eat("=")) this.#fail("not TOML");
    const last = keys.pop() as string;
    let at = into;
    for (const key of keys) {
      const next = at[key];
      // A table of a header is not changed by dotted keys.
      if (next !== undefined && (!isTable(next) || this.#closed.has(next) || (top && this.#defined.has(next)))) this.#twice();
      at = next ?? (at[key] = table());
    }
    if (at[last] !== undefined) this.#twice();
    this.#blank(false);
    at[last] = this.#value(0);
  }

  #value(depth: number): Value {
    if (depth > maxNesting) this.#fail(`nested deeper than ${maxNesting}`);
    const c = this.text[this.#at];
    if (c === '"' || c === "'") return this.#string(true);
    if (c === "[") return this.#array(depth);
    if (c === "{") return this.#inline(depth);
    const word = /[A-Za-z0-9+\-_.:]+(?: (?=\d\d:)[0-9:.+\-Z]+)?/y;
    word.lastIndex = this.#at;
    const found = word.exec(this.text)?.[0];
    if (found === undefined) this.#fail("not TOML");
    const value = scalar(found);
    if (value === undefined) this.#fail("not TOML");
    this.#at += found.length;
    return value;
  }

  #array(depth: number): Value[] {
    this.#at++;
    const list: Value[] = [];
    this.#closed.add(list);
    for (;;) {
      this.#blank(true);
      if (this.#eat("]")) return list;
      list.push(this.#value(depth + 1));
      this.#blank(true);
      if (this.#eat(",")) continue;
      if (this.#eat("]")) return list;
      this.#fail("not TOML");
    }
  }

  #inline(depth: number): Table {
    this.#at++;
    if (depth >= maxNesting) this.#fail(`nested deeper than ${maxNesting}`);
    const made = table();
    this.#blank(false);
    if (!this.#eat("}")) {
      do {
        this.#pair(made, false);
        this.#blank(false);
      } while (this.#eat(","));
      if (!this.#eat("}")) this.#fail("not TOML");
    }
    this.#closed.add(made);
    return made;
  }

  #string(long: boolean): string {
    const quote = this.text[this.#at] as string;
    const literal = quote === "'";
    const multi = long && this.text.startsWith(quote.repeat(3), this.#at);
    this.#at += multi ? 3 : 1;
    if (multi) this.#eat("\n");
    let found = "";
    for (;;) {
      const c = this.text[this.#at];
      if (c === undefined || (c === "\n" && !multi)) this.#fail("a string does not end");
      if (c === quote) {
        if (!multi) {
          this.#at++;
          return found;
        }
        const run = (literal ? /'+/y : /"+/y);
        run.lastIndex = this.#at;
        const quotes = (run.exec(this.text)?.[0] as string).length;
        if (quotes >= 3) {
          if (quotes > 5) this.#fail("a string ends with too many quotes");
          this.#at += quotes;
          return found + quote.repeat(quotes - 3);
        }
        found += quote.repeat(quotes);
        this.#at += quotes;
      } else if (c === "\\" && !literal) {
        found += this.#escape(multi);
      } else {
        if (/[\u0000-\u0008\u000b-\u001f\u007f]/.test(c)) this.#fail("a string has a control character");
        found += c;
        this.#at++;
      }
    }
  }

  #escape(multi: boolean): string {
    const c = this.text[++this.#at] ?? "";
    if (multi && /[ \t\n]/.test(c)) {
      const blank = /[ \t]*\n[ \t\n]*/y;
      blank.lastIndex = this.#at;
      const skipped = blank.exec(this.text)?.[0];
      if (skipped === undefined) this.#fail("not TOML");
      this.#at += skipped.length;
      return "";
    }
    this.#at++;
    const simple = ({ b: "\b", t: "\t", n: "\n", f: "\f", r: "\r", '"': '"', "\\": "\\" } as Record<string, string>)[c];
    if (simple !== undefined) return simple;
    const size = c === "u" ? 4 : c === "U" ? 8 : 0;
    const hex = this.text.slice(this.#at, this.#at + size);
    const code = /^[0-9A-Fa-f]+$/.test(hex) && hex.length === size ? parseInt(hex, 16) : -1;
    if (size === 0 || code < 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) this.#fail("a string has an escape that does not exist");
    this.#at += size;
    return String.fromCodePoint(code);
  }
}

function isTable(value: Value): value is Table {
  return typeof value === "object" && !Array.isArray(value) && !(value instanceof Date);
}

const integer = /^(?:[+-]?(?:0|[1-9](?:_?\d)*)|0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*)$/;
const float = /^[+-]?(?:(?:0|[1-9](?:_?\d)*)(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d(?:_?\d)*)?|inf|nan)$/;
const date = /^(?:\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)?)?|\d\d:\d\d:\d\d(?:\.\d+)?)$/;

function scalar(word: string): Value | undefined {
  if (word === "true" || word === "false") return word === "true";
  const digits = word.replaceAll("_", "");
  if (integer.test(word)) return digits.startsWith("-") ? -BigInt(digits.slice(1)) : BigInt(digits.replace("+", ""));
  if (float.test(word)) return Number(digits.replace("inf", "Infinity").replace("nan", "NaN"));
  return date.test(word) ? word : undefined;
}
