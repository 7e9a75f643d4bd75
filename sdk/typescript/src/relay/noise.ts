import { x25519 } from "@noble/curves/ed25519.js";
import { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
import { ProtocolError } from "../errors.js";
import { concat } from "../text.js";

/*
 * Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256, as its initiator. Two messages:
 *
 *   <- s
 *   ...
 *   -> skem, e, es, s, ss
 *   <- ekem, skem, e, ee, se
 *
 * Each e and s is a pair of an X25519 key and an ML-KEM-768 key.
 */

const protocolName = "Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256";

const x25519Length = 32;
const kemKeyLength = 1184;
const kemTextLength = 1088;
const tagLength = 16;

/** How long the second message is: its payload is empty. */
const answerLength = kemTextLength + kemTextLength + tagLength + x25519Length + kemKeyLength + tagLength;

/** The public half of an identity. */
export interface PublicKeys {
  readonly x25519: Uint8Array;
  readonly kem: Uint8Array;
}

/** An identity, or keys of one handshake. */
export interface Keys extends PublicKeys {
  readonly x25519Secret: Uint8Array;
  readonly kemSecret: Uint8Array;
}

/** Makes keys, of randomness or of the seeds of a test. */
export function makeKeys(x25519Secret?: Uint8Array, kemSeed?: Uint8Array): Keys {
  const secret = x25519Secret ?? crypto.getRandomValues(new Uint8Array(x25519Length));
  const kem = ml_kem768.keygen(kemSeed);
  return { x25519: x25519.getPublicKey(secret), x25519Secret: secret, kem: kem.publicKey, kemSecret: kem.secretKey };
}

/** Randomness that a test knows. */
export interface Fixed {
  ephemeral?: Keys;
  encapsulation?: Uint8Array;
}

type Bytes = Uint8Array<ArrayBuffer>;

const empty = new Uint8Array();

/** WebCrypto takes every view, and its types only those of memory that is not shared, which nobody here has. */
function owned(bytes: Uint8Array): Bytes {
  return bytes as Bytes;
}

async function sha256(...pieces: Uint8Array[]): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", owned(concat(pieces))));
}

async function hmac(key: Uint8Array, ...pieces: Uint8Array[]): Promise<Uint8Array> {
  const imported = await crypto.subtle.importKey("raw", owned(key), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, owned(concat(pieces))));
}

/** The HKDF of Noise: two outputs or three. */
async function hkdf(chaining: Uint8Array, input: Uint8Array, outputs: 2 | 3): Promise<Uint8Array[]> {
  const temporary = await hmac(chaining, input);
  const all: Uint8Array[] = [];
  let last: Uint8Array = empty;
  for (let i = 1; i <= outputs; i++) {
    last = await hmac(temporary, last, Uint8Array.of(i));
    all.push(last);
  }
  return all;
}

/** Encrypts or decrypts one record. */
type Work = (encrypts: boolean, iv: Uint8Array, data: Uint8Array, text: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/** What Node, Bun and Deno have besides WebCrypto. It works at once, and takes a fraction of the time. */
const native = (globalThis as { process?: { getBuiltinModule?(name: string): Pick<typeof import("node:crypto"), "createCipheriv" | "createDecipheriv"> | undefined } })
  .process?.getBuiltinModule?.("node:crypto");

async function webCipher(key: Uint8Array): Promise<Work> {
  const imported = await crypto.subtle.importKey("raw", owned(key), "AES-GCM", false, ["encrypt", "decrypt"]);
  return async (encrypts, iv, data, text) =>
    new Uint8Array(await crypto.subtle[encrypts ? "encrypt" : "decrypt"]({ name: "AES-GCM", iv: owned(iv), additionalData: owned(data) }, imported, owned(text)));
}

function nativeCipher({ createCipheriv, createDecipheriv }: NonNullable<typeof native>, key: Uint8Array): Work {
  return (encrypts, iv, data, text) => {
    if (encrypts) {
      const cipher = createCipheriv("aes-256-gcm", key, iv).setAAD(data);
      return concat([cipher.update(text), cipher.final(), cipher.getAuthTag()]);
    }
    if (text.length < tagLength) throw new Error("it is shorter than its tag");
    const decipher = createDecipheriv("aes-256-gcm", key, iv, { authTagLength: tagLength }).setAAD(data);
    decipher.setAuthTag(text.subarray(text.length - tagLength));
    const plain = decipher.update(text.subarray(0, text.length - tagLength));
    decipher.final(); // it throws if the tag is another one
    return plain;
  };
}

/** Encrypts or decrypts the records of one direction, each with the next number. */
export class Cipher {
  #count = 0;

  private constructor(private readonly work: Work) {}

  /** web: use WebCrypto, although there is something faster. */
  static async of(key: Uint8Array, web = native === undefined): Promise<Cipher> {
    return new Cipher(web || native === undefined ? await webCipher(key) : nativeCipher(native, key));
  }

  #next(): Uint8Array {
    if (this.#count > 0xffffffff) throw new ProtocolError("a stream has had as many records as it may have");
    const iv = new Uint8Array(12);
    new DataView(iv.buffer).setBigUint64(4, BigInt(this.#count++));
    return iv;
  }

  encrypt(plain: Uint8Array, data: Uint8Array = empty): Uint8Array | Promise<Uint8Array> {
    return this.work(true, this.#next(), data, plain);
  }

  decrypt(text: Uint8Array, data: Uint8Array = empty): Uint8Array | Promise<Uint8Array> {
    const iv = this.#next();
    const failed = (error: unknown): never => {
      throw new ProtocolError("what came through the relay cannot be decrypted", error);
    };
    try {
      const plain = this.work(false, iv, data, text);
      return plain instanceof Promise ? plain.catch(failed) : plain;
    } catch (error) {
      return failed(error);
    }
  }
}

/** What both ends know after the handshake. */
export interface Secured {
  readonly sending: Cipher;
  readonly receiving: Cipher;
  /** @internal For tests. */
  readonly hash: Uint8Array;
}

/** A handshake of the initiator. */
export class Handshake {
  #hash: Uint8Array = empty;
  #chaining: Uint8Array = empty;
  #cipher: Cipher | undefined;
  readonly #own: Keys;
  readonly #ephemeral: Keys;

  private constructor(own: Keys, ephemeral: Keys) {
    this.#own = own;
    this.#ephemeral = ephemeral;
  }

  /** Begins a handshake, and returns the first message. */
  static async begin(own: Keys, peer: PublicKeys, prologue: Uint8Array, payload: Uint8Array, fixed: Fixed = {}): Promise<[Handshake, Uint8Array]> {
    const noise = new Handshake(own, fixed.ephemeral ?? makeKeys());
    noise.#hash = await sha256(new TextEncoder().encode(protocolName));
    noise.#chaining = noise.#hash;
    for (const known of [prologue, peer.x25519, peer.kem]) await noise.#mixHash(known);

    const { cipherText, sharedSecret } = ml_kem768.encapsulate(peer.kem, fixed.encapsulation);
    const pieces = [await noise.#encrypt(cipherText)]; // skem
    await noise.#mixKeyAndHash(sharedSecret);
    for (const key of [noise.#ephemeral.x25519, noise.#ephemeral.kem]) {
      pieces.push(key); // e
      await noise.#mixHash(key);
    }
    await noise.#mixKey(x25519.getSharedSecret(noise.#ephemeral.x25519Secret, peer.x25519)); // es
    pieces.push(await noise.#encrypt(own.x25519), await noise.#encrypt(own.kem)); // s
    await noise.#mixKey(x25519.getSharedSecret(own.x25519Secret, peer.x25519)); // ss
    pieces.push(await noise.#encrypt(payload));
    return [noise, concat(pieces)];
  }

  /** Takes the second message. */
  async finish(message: Uint8Array): Promise<Secured> {
    if (message.length !== answerLength) throw new ProtocolError(`the handshake of the executor has ${message.length} bytes, and must have ${answerLength}`);
    let at = 0;
    const take = (length: number): Uint8Array => message.subarray(at, (at += length));
    const ekem = take(kemTextLength);
    await this.#mixHash(ekem);
    await this.#mixKey(ml_kem768.decapsulate(ekem, this.#ephemeral.kemSecret));
    const skem = await this.#decrypt(take(kemTextLength + tagLength));
    await this.#mixKeyAndHash(ml_kem768.decapsulate(skem, this.#own.kemSecret));
    const ephemeral = take(x25519Length); // e
    await this.#mixHash(ephemeral);
    await this.#mixHash(take(kemKeyLength));
    await this.#mixKey(x25519.getSharedSecret(this.#ephemeral.x25519Secret, ephemeral)); // ee
    await this.#mixKey(x25519.getSharedSecret(this.#own.x25519Secret, ephemeral)); // se
    await this.#decrypt(take(tagLength)); // the empty payload
    const [sending, receiving] = (await hkdf(this.#chaining, empty, 2)) as [Uint8Array, Uint8Array];
    return { sending: await Cipher.of(sending), receiving: await Cipher.of(receiving), hash: this.#hash };
  }

  async #mixHash(data: Uint8Array): Promise<void> {
    this.#hash = await sha256(this.#hash, data);
  }

  async #mixKey(input: Uint8Array): Promise<void> {
    const [chaining, key] = (await hkdf(this.#chaining, input, 2)) as [Uint8Array, Uint8Array];
    this.#chaining = chaining;
    this.#cipher = await Cipher.of(key);
  }

  async #mixKeyAndHash(input: Uint8Array): Promise<void> {
    const [chaining, hashed, key] = (await hkdf(this.#chaining, input, 3)) as [Uint8Array, Uint8Array, Uint8Array];
    this.#chaining = chaining;
    await this.#mixHash(hashed);
    this.#cipher = await Cipher.of(key);
  }

  async #encrypt(plain: Uint8Array): Promise<Uint8Array> {
    const text = this.#cipher === undefined ? plain : await this.#cipher.encrypt(plain, this.#hash);
    await this.#mixHash(text);
    return text;
  }

  async #decrypt(text: Uint8Array): Promise<Uint8Array> {
    const plain = this.#cipher === undefined ? text : await this.#cipher.decrypt(text, this.#hash);
    await this.#mixHash(text);
    return plain;
  }
}

/** Returns what both ends say before the handshake, so that a message fits only its place. */
export function prologueOf(...ids: string[]): Uint8Array {
  const pieces: Uint8Array[] = [];
  for (const id of ["codex-exec-server-relay-noise/v1", ...ids]) {
    const bytes = new TextEncoder().encode(id);
    const length = new Uint8Array(8);
    new DataView(length.buffer).setBigUint64(0, BigInt(bytes.length));
    pieces.push(length, bytes);
  }
  return concat(pieces);
}
