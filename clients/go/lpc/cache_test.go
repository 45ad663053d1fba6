package lpc

import (
	"math"
	"reflect"
	"testing"
	"time"
)

func evicted(c *Cache, now float64) []string {
	var hashes []string
	for hash, ok := c.Evict(now); ok; hash, ok = c.Evict(now) {
		hashes = append(hashes, hash)
	}
	return hashes
}

func serve(c *Cache, conversation string, tLast, credit float64, chain ...string) {
	c.Use(chain)
	c.Free(chain, conversation, tLast, credit)
}

func TestWithoutCreditTheOrderIsLRUTailFirst(t *testing.T) {
	c := NewCache(9)
	serve(c, "a", 10, 0, "a0", "a1")
	serve(c, "b", 20, 0, "b0")
	serve(c, "a", 30, 0, "a0", "a1", "a2")
	if got := evicted(c, 40); !reflect.DeepEqual(got, []string{"b0", "a2", "a1", "a0"}) {
		t.Fatal(got)
	}
}

func TestAnotherConversationRaisesAndItsOwnReplaces(t *testing.T) {
	c := NewCache(9)
	c.Trust(true)
	serve(c, "a", 10, 500, "s", "a1")
	serve(c, "b", 20, -500, "s", "b1") // shared: keeps a's
	serve(c, "a", 30, -600, "s", "a1") // a's own block sinks
	if got := evicted(c, 40); !reflect.DeepEqual(got, []string{"a1", "b1", "s"}) {
		t.Fatal(got)
	}
}

func TestABlockInUseIsNotEvicted(t *testing.T) {
	c := NewCache(9)
	serve(c, "a", 10, 0, "s")
	if c.Use([]string{"s", "x"}) != 1 || len(evicted(c, 20)) != 0 {
		t.Fatal("evicted while in use")
	}
}

func TestEvictionsTeachTheLifetime(t *testing.T) {
	c := NewCache(1)
	serve(c, "a", 10, 0, "a0")
	c.Evict(150)
	if c.Lifetime() != 140 {
		t.Fatal(c.Lifetime())
	}
}

func TestNoNumberIsNoCredit(t *testing.T) {
	grid := Grid{1, 100}
	for _, table := range [][]float32{{1}, {1, float32(math.NaN())}, {1, 1e9}} {
		if _, err := grid.At(table, 10); err == nil {
			t.Fatal(table)
		}
	}
	if credit, err := grid.At([]float32{0, 80}, 10); err != nil || math.Abs(credit-40) > 1e-9 {
		t.Fatal(credit, err)
	}
	for _, bad := range []Grid{{}, {1}, {0, 1}, {2, 1}, {1, math.Inf(1)}} {
		if bad.Check() == nil {
			t.Fatal(bad)
		}
	}
}

func TestARetentionLastsForTheLifetimeAndTheCredit(t *testing.T) {
	for _, of := range []struct {
		credit, lifetime float64
		priority         int
		duration         time.Duration
	}{
		{0, 140, Kept, 140 * time.Second},
		{95, 140, Kept, 235 * time.Second},
		{-100.5, 140, Kept, 39500 * time.Millisecond},
		{-140, 140, Gone, 0},
		{math.NaN(), 140, Gone, 0},
		{1e9, 140, Kept, 24 * time.Hour},
	} {
		if priority, duration := Retention(of.credit, of.lifetime); priority != of.priority || duration != of.duration {
			t.Fatal(of, priority, duration)
		}
	}
}

func TestUntilKeysAreTrustedTheOrderIsLRUAndThenTheirs(t *testing.T) {
	for _, trust := range []bool{false, true} {
		c := NewCache(9)
		serve(c, "a", 10, 500, "a0", "a1")
		serve(c, "b", 20, 0, "b0")
		c.Trust(trust)
		want := []string{"a1", "a0", "b0"}
		if trust {
			want = []string{"b0", "a1", "a0"}
		}
		if got := evicted(c, 40); !reflect.DeepEqual(got, want) {
			t.Fatal(trust, got)
		}
	}
}
