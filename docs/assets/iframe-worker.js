/* Pages opened from disk may start no worker, which the search runs in: there a hidden frame does its work, with the same three words. */
if (location.protocol === "file:") {
  const PRELUDE =
    "var postMessage = data => parent.dispatchEvent(new MessageEvent('iframe-worker', { data: data }));" +
    "var importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {" +
    "  const script = document.createElement('script');" +
    "  script.src = url; script.onload = done; script.onerror = failed; document.body.appendChild(script);" +
    "})), Promise.resolve());"

  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = [] // what is said before the frame can listen
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow.document
      inside.open()
      inside.write("<html><body><script>" + PRELUDE + "<\/script><script src=\"" + url + "\"><\/script></body></html>")
      inside.close()
      this.frame.onload = () => this.waiting.splice(0).forEach(data => this.tell(data))
      addEventListener("iframe-worker", event => {
        const message = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      })
    }

    tell(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: data }))
    }

    postMessage(data) {
      if (this.frame.contentWindow.document.readyState === "complete") this.tell(data)
      else this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
