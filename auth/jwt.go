package auth

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// Sizes of an RSA key that signs tokens, in bits: the minimum of RFC 7518 3.3,
// and the largest that is quick to check.
const (
	minModulus = 2048
	maxModulus = 8192
)

// claimAuth is the claim of OpenAI's tokens that says which account they are for
// (remote.md 12.2).
const claimAuth = "https://api.openai.com/auth"

var errNotJWT = errors.New("is not a JWT")

// jwt is a token split into its parts, none of them verified.
type jwt struct {
	header, claims strictjson.Map
	signed         string // the text that the signature covers
	signature      []byte
}

// parseJWT reads a compact JWS whose payload is a JSON object (RFC 7519 7.2).
func parseJWT(token string) (*jwt, error) {
	if len(token) > maxToken || strings.Count(token, ".") != 2 {
		return nil, errNotJWT
	}
	dot, last := strings.IndexByte(token, '.'), strings.LastIndexByte(token, '.')
	header, err1 := decodePart(token[:dot])
	claims, err2 := decodePart(token[dot+1 : last])
	signature, err3 := strictjson.RawURLBase64.Decode(token[last+1:])
	if err1 != nil || err2 != nil || err3 != nil {
		return nil, errNotJWT
	}
	return &jwt{header: header, claims: claims, signed: token[:last], signature: signature}, nil
}

func decodePart(part string) (strictjson.Map, error) {
	data, err := strictjson.RawURLBase64.Decode(part)
	if err != nil {
		return nil, err
	}
	defer clear(data) // may hold a private key
	return strictjson.ParseMap(data)
}

// account returns the ChatGPT account of the token; its id may be empty.
func (j *jwt) account() account {
	claim, err := strictjson.ParseMap(j.claims[claimAuth])
	if err != nil {
		return account{}
	}
	id, err := claim.Text("chatgpt_account_id")
	if err != nil {
		return account{}
	}
	return account{id: id, fedRAMP: isTrue(claim["chatgpt_account_is_fedramp"])}
}

func isTrue(raw json.RawMessage) bool { return string(raw) == "true" }

// expiry returns the time in claim exp; ok is false if there is none.
func (j *jwt) expiry() (t time.Time, ok bool) {
	var seconds float64 // RFC 7519 2: fractions are allowed
	if !j.claims.Has("exp") || json.Unmarshal(j.claims["exp"], &seconds) != nil {
		return time.Time{}, false
	}
	const beyond = 1 << 40 // about the year 36,800, which time.Time can still hold
	return time.Unix(int64(math.Floor(max(-beyond, min(beyond, seconds)))), 0), true
}

// audience reports whether the token is meant for name. The claim may have one
// name or several (RFC 7519, 4.1.3).
func (j *jwt) audience(name string) bool {
	names, err := j.claims.Texts("aud")
	return err == nil && slices.Contains(names, name)
}

// verify checks the RS256 signature with the key of the set that the header names.
func (j *jwt) verify(set []byte) error {
	if alg, err := j.header.Text("alg"); err != nil || alg != "RS256" {
		return errors.New("is not signed with RS256")
	}
	kid, err := j.header.Text("kid")
	if err != nil || kid == "" {
		return errors.New("names no key")
	}
	key, err := keyOf(set, kid)
	if err != nil {
		return err
	}
	digest := sha256.Sum256([]byte(j.signed))
	if rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], j.signature) != nil {
		return errors.New("is not signed by the key that it names")
	}
	return nil
}

// keyOf finds an RSA key in a JWK set (RFC 7517).
func keyOf(set []byte, kid string) (*rsa.PublicKey, error) {
	var keys struct {
		Keys []struct {
			Kty, Kid, Alg, Use, N, E string
		}
	}
	if json.Unmarshal(set, &keys) != nil {
		return nil, errors.New("cannot be checked: the key set is not one")
	}
	for _, k := range keys.Keys {
		if k.Kid != kid || k.Kty != "RSA" || k.Alg != "" && k.Alg != "RS256" || k.Use != "" && k.Use != "sig" {
			continue
		}
		n, err1 := strictjson.RawURLBase64.Decode(k.N)
		e, err2 := strictjson.RawURLBase64.Decode(k.E)
		if err1 != nil || err2 != nil || len(n) > maxModulus/8 || len(e) == 0 || len(e) > 4 {
			return nil, errors.New("cannot be checked: its key is not readable")
		}
		modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e).Int64()
		if modulus.BitLen() < minModulus || exponent < 3 || exponent > math.MaxInt32 || exponent%2 == 0 {
			return nil, errors.New("cannot be checked: its key is too weak")
		}
		return &rsa.PublicKey{N: modulus, E: int(exponent)}, nil
	}
	return nil, errors.New("is signed with a key that the key set does not have")
}
