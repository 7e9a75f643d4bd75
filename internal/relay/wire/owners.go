package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"

	"github.com/execagent/execagent/internal/strictjson"
)

// StreamOwners says whose the streams are that an executor is about to resume, so that a
// rendezvous which does not remember them gives them to nobody else (remote.md 8.1). Both
// the stream's id and its owner, by ValidateResponse.Principal, are there as the beginning
// of their SHA-256.
type StreamOwners map[ownerHash]ownerHash

type ownerHash [8]byte

func hashOwner[T ~string | ~[]byte](text T) ownerHash {
	sum := sha256.Sum256([]byte(text))
	return ownerHash(sum[:])
}

// maxStreamOwners bounds how many streams a header may name. An executor serves 128
// (remote.md 8.2), and a header of these has 2,731 bytes.
const maxStreamOwners = 512

// Set notes the owner of a stream.
func (o StreamOwners) Set(stream []byte, owner string) { o[hashOwner(stream)] = hashOwner(owner) }

// Forget forgets a stream, which has ended.
func (o StreamOwners) Forget(stream string) { delete(o, hashOwner(stream)) }

// Known reports whether the owner of a stream is known.
func (o StreamOwners) Known(stream string) bool {
	_, ok := o[hashOwner(stream)]
	return ok
}

// Is reports whether a stream is known to be the owner's.
func (o StreamOwners) Is(stream, owner string) bool {
	want, ok := o[hashOwner(stream)]
	return ok && want == hashOwner(owner)
}

// Header returns the value of HeaderStreamOwners.
func (o StreamOwners) Header() string {
	var b []byte
	for stream, owner := range o {
		b = append(append(b, stream[:]...), owner[:]...)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseStreamOwners reads the value of HeaderStreamOwners, "" for none.
func ParseStreamOwners(header string) (StreamOwners, error) {
	const entry = 2 * len(ownerHash{})
	b, err := strictjson.RawURLBase64.Decode(header)
	if err != nil || len(b)%entry != 0 || len(b) > maxStreamOwners*entry {
		return nil, errors.New("it does not say whose streams there are")
	}
	if len(b) == 0 {
		return nil, nil
	}
	o := make(StreamOwners, len(b)/entry)
	for ; len(b) > 0; b = b[entry:] {
		o[ownerHash(b)] = ownerHash(b[len(ownerHash{}):])
	}
	return o, nil
}
