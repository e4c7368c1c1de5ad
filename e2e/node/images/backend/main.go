// backend answers with its Pod's name and what it was sent, /stream without an end. It ends at once on SIGTERM. `backend get URL` is a client.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		answer, err := http.Get(os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		defer answer.Body.Close()
		fmt.Println(answer.StatusCode)
		if _, err := io.Copy(os.Stdout, answer.Body); err != nil {
			log.Fatal(err)
		}
		return
	}
	name, _ := os.Hostname()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "pod %s version %s\n%s %s\n", name, os.Getenv("VERSION"), r.Method, r.URL)
		names := make([]string, 0, len(r.Header))
		for n := range r.Header {
			names = append(names, n)
		}
		sort.Strings(names)
		for _, n := range names {
			fmt.Fprintf(w, "%s: %s\n", strings.ToLower(n), strings.Join(r.Header[n], ", "))
		}
	})
	http.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			fmt.Fprintf(w, "line %d\n", i)
			w.(http.Flusher).Flush()
			time.Sleep(200 * time.Millisecond)
		}
	})
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() { <-end; os.Exit(0) }()
	log.Fatal(http.ListenAndServe(":8080", nil))
}
