package lpc

import (
	"fmt"
	"testing"
)

// One request in four is of conversations that return; these are given this credit, the others its opposite.
func traffic(g *Guard, s *Shadows, first, requests, blocks int, credit float64) {
	for number := first; number < first+requests; number++ {
		name, seconds := fmt.Sprint("once", number), -credit
		if number%4 == 0 {
			name, seconds = fmt.Sprint("returns", number/4%3), credit
		}
		var chain []string
		for n := 0; n < blocks; n++ {
			chain = append(chain, fmt.Sprint(name, "/", n))
		}
		g.Observe(s.Observe(chain, name, 1e9+10*float64(number), func(float64) float64 { return seconds }))
	}
}

func TestCreditThatPaysIsTrustedUntilPredictionsTurnRound(t *testing.T) {
	var g Guard
	s := NewShadows(100)
	traffic(&g, s, 0, 400, 20, 200)
	if !g.Trusting {
		t.Fatal("credit pays and is not trusted")
	}
	traffic(&g, s, 400, 1000, 6, -200)
	if g.Trusting {
		t.Fatal("credit costs hits and is trusted")
	}
}

func TestCreditThatIsTurnedRoundIsNeverTrusted(t *testing.T) {
	var g Guard
	traffic(&g, NewShadows(100), 0, 400, 20, -200)
	if g.Trusting {
		t.Fatal("trusted")
	}
}

func TestAShadowNeverHoldsMoreThanItsRoom(t *testing.T) {
	for _, blocks := range []int{1, 100, 1000} {
		s := NewShadows(blocks)
		traffic(&Guard{}, s, 0, 100, 300, 50)
		if s.credit.Len() > s.room || s.lru.Len() > s.room {
			t.Fatal(blocks, s.room, s.credit.Len(), s.lru.Len())
		}
	}
}
