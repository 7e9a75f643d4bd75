package noise

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/flynn/noise"
)

// TagSize is the number of bytes that encryption adds to a plaintext.
const TagSize = 16

// A symmetricState is the SymmetricState of the Noise specification (revision 34, section
// 5.2): the chaining key, the hash of all sent and received data, and the cipher with the
// key that was derived from all keys mixed so far.
type symmetricState struct {
	h      [sha256.Size]byte
	ck     [sha256.Size]byte
	cipher noise.Cipher // nil until the first key is mixed
	n      uint64       // nonce of the next message under cipher
}

// initialize sets h and ck to the protocol's name, padded with zeros if the name is short
// enough, and hashed otherwise.
func (s *symmetricState) initialize(name string) {
	if len(name) <= len(s.h) {
		copy(s.h[:], name)
	} else {
		s.h = sha256.Sum256([]byte(name))
	}
	s.ck = s.h
}

func (s *symmetricState) mixHash(data []byte) {
	hash := noise.HashSHA256.Hash()
	hash.Write(s.h[:])
	hash.Write(data)
	hash.Sum(s.h[:0])
}

// mixKey mixes a secret into the chaining key and begins a new cipher.
func (s *symmetricState) mixKey(secret []byte) {
	out := s.hkdf(secret, 2)
	copy(s.ck[:], out)
	s.setCipher(out[sha256.Size:])
	clear(out)
}

// mixKeyAndHash is mixKey for a secret that is mixed into the hash too.
func (s *symmetricState) mixKeyAndHash(secret []byte) {
	out := s.hkdf(secret, 3)
	copy(s.ck[:], out)
	s.mixHash(out[sha256.Size : 2*sha256.Size])
	s.setCipher(out[2*sha256.Size:])
	clear(out)
}

// setCipher begins the cipher of a new key, whose nonces start at 0.
func (s *symmetricState) setCipher(key []byte) {
	k := [32]byte(key)
	s.cipher, s.n = noise.CipherAESGCM.Cipher(k), 0
	clear(k[:])
}

// encryptAndHash appends the ciphertext of plaintext, or plaintext itself if
// there is no key yet. It mixes the appended bytes into the hash.
func (s *symmetricState) encryptAndHash(dst, plaintext []byte) []byte {
	end := len(dst)
	if s.cipher == nil {
		dst = append(dst, plaintext...)
	} else {
		dst = s.cipher.Encrypt(dst, s.n, s.h[:], plaintext)
		s.n++
	}
	s.mixHash(dst[end:])
	return dst
}

// decryptAndHash returns the plaintext, which is text itself if there is no key
// yet, and mixes text into the hash.
func (s *symmetricState) decryptAndHash(text []byte) ([]byte, error) {
	plaintext := text
	if s.cipher != nil {
		var err error
		if plaintext, err = s.cipher.Decrypt(nil, s.n, s.h[:], text); err != nil {
			return nil, err
		}
		s.n++
	}
	s.mixHash(text)
	return plaintext, nil
}

// split ends the handshake: the first cipher state encrypts from the initiator
// to the responder, the second the other way.
func (s *symmetricState) split() (fromInitiator, fromResponder *noise.CipherState) {
	suite := noise.NewCipherSuite(noise.DH25519, noise.CipherAESGCM, noise.HashSHA256)
	out := s.hkdf(nil, 2)
	fromInitiator = noise.UnsafeNewCipherState(suite, [32]byte(out[:32]), 0)
	fromResponder = noise.UnsafeNewCipherState(suite, [32]byte(out[32:]), 0)
	clear(out)
	return fromInitiator, fromResponder
}

// wipe drops the keys. It also drops the hash, which is no secret but not needed any more.
func (s *symmetricState) wipe() { *s = symmetricState{} }

// hkdf returns n outputs of the Noise HKDF, one after the other. The Noise HKDF is the HKDF
// of RFC 5869 with the chaining key as salt and no info.
func (s *symmetricState) hkdf(secret []byte, n int) []byte {
	out, err := hkdf.Key(noise.HashSHA256.Hash, secret, s.ck[:], "", n*sha256.Size)
	if err != nil {
		panic(fmt.Sprintf("noise: HKDF refuses to make %d keys: %v", n, err)) // the length is the only thing it can refuse
	}
	return out
}
