package ticket

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"encoding/base64"

	"github.com/execagent/execagent/internal/strictjson"
)

// pseudonymTag is how many bytes of the HMAC begin a pseudonym. They are the initial
// value of the mask as well.
const pseudonymTag = aes.BlockSize

// Pseudonym returns the text by which the executor of an environment knows a principal
// (remote.md 3.2): always the same one there, another one in every other environment.
// Nobody but a registry on the same store can tell whose it is. It is an HMAC of both
// ids, and behind it the principal's id under a mask that depends on the HMAC.
func (g *Signer) Pseudonym(environmentID, principal string) string {
	tag := sign(g.pseudonymKey, []byte(version), []byte(environmentID), []byte(principal))[:pseudonymTag]
	return base64.RawURLEncoding.EncodeToString(append(tag, g.mask(tag, []byte(principal))...))
}

// OpenPseudonym returns the principal that a pseudonym stands for. ok is false for a text
// that Pseudonym has not made for this environment.
func (g *Signer) OpenPseudonym(environmentID, text string) (principal string, ok bool) {
	b, err := strictjson.RawURLBase64.Decode(text)
	if err != nil || len(b) < pseudonymTag {
		return "", false
	}
	name := g.mask(b[:pseudonymTag], b[pseudonymTag:])
	want := sign(g.pseudonymKey, []byte(version), []byte(environmentID), name)[:pseudonymTag]
	return string(name), hmac.Equal(b[:pseudonymTag], want)
}

// mask encrypts a principal's id, or decrypts it.
func (g *Signer) mask(tag, name []byte) []byte {
	block, err := aes.NewCipher(g.maskKey)
	if err != nil {
		panic(err) // only for keys of another length
	}
	masked := make([]byte, len(name))
	cipher.NewCTR(block, tag).XORKeyStream(masked, name)
	return masked
}
