package ticket

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"encoding/base64"

	"github.com/execagent/execagent/internal/strictjson"
)

// pseudonymTag is the number of bytes of the HMAC at the start of a pseudonym. These bytes
// are also the initialization vector of the mask.
const pseudonymTag = aes.BlockSize

// Pseudonym returns the text by which the executor of an environment knows a principal
// (remote.md 3.2). A principal has one pseudonym in each environment, and different ones in
// different environments. Only a registry on the same store can tell the principal from it.
// A pseudonym is an HMAC of both ids, followed by the principal's id under a mask that depends
// on the HMAC.
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
