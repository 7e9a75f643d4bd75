package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"

	"github.com/execagent/execagent/internal/strictjson"
)

// StreamOwners has the owners of the streams that an executor is about to resume. With it, a
// rendezvous that does not remember these streams gives them only to their owners (remote.md
// 8.1). The key is the first 8 bytes of the SHA-256 of the stream's id. The value is
// the first 8 bytes of the SHA-256 of the owner, a ValidateResponse.Principal.
type StreamOwners map[ownerHash]ownerHash

type ownerHash [8]byte

func hashOwner[T ~string | ~[]byte](text T) ownerHash {
	sum := sha256.Sum256([]byte(text))
	return ownerHash(sum[:])
}

// maxStreamOwners bounds the number of streams in a header. An executor serves 128 streams
// (remote.md 8.2), and the header for 128 streams has 2,731 bytes.
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

// Is reports whether owner is known to be the owner of a stream.
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

// ParseStreamOwners decodes the value of HeaderStreamOwners. For "" it returns nil.
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
