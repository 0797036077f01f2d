// Browsers start no worker from a file, and the search of the manual is one. A hidden frame does its work there, in the
// page's own thread, so that the manual can be searched without a server.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    this.ready = new Promise((loaded) => script.addEventListener("load", loaded));
    script.src = url;
    inside.document.head.append(script);
  }

  postMessage(data) {
    const inside = this.frame.contentWindow;
    this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: inside.structuredClone(data) })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.Worker = FrameWorker;
}
